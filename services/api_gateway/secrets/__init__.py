"""Secrets: sealed storage, and the search for secrets in plain text."""
