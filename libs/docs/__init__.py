"""The pages of docs/ that are generated from the code.

`python -m libs.docs` writes them; tests/test_docs.py checks that they are up to date.
"""
