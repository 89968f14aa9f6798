"""Proof that all members hold the same state: hashes of it at the same places of the log.

Owns: the hash of a state (`tree.py`), its comparison with the one in the log (`follower.py`), and
the questions about its parts (`asking.py`).
"""
