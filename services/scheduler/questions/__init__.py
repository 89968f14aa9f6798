"""Answers to whatif, why and questions about the past."""
