"""Handling of hostile input: folders, archives, keys and secrets in text."""
