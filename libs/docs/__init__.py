"""The pages of docs/ that are generated from the code: `python -m libs.docs` writes them,
tests/test_docs.py holds them.
"""
