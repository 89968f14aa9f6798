"""The archive's schema, step by step; `migrating.py` runs it.

A new step is a new file in versions/, both ways, with the tables written out: a step that was
released is never edited. tests/integration/test_audit_store.py holds the steps and `tables.py` to
one another.
"""
