"""Flags of verbs that describe a job or a model."""
