"""The archive's schema, step by step. `migrating.py` runs it; a new step is a new file in versions/, both ways."""
