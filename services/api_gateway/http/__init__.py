"""The REST surface: one file per resource, each a router.

What is valid is said by `intents.py`, what is shown by `views/`.
"""
