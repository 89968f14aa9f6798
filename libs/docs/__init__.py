"""Generators of pages of docs/, and of the Python client without `async`.

`python -m libs.docs` writes them; tests/test_docs.py checks that they are up to date.
"""
