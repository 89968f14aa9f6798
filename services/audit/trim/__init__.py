"""Trimming the log after it is archived."""
