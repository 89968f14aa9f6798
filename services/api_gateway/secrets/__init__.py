"""Secrets: encrypted storage, and the search for secrets in plain text."""
