"""Backup and restore: everything that a cluster knows, copied to another place and brought back.

Owns the sealed objects of a place, the manifest that ties them together, and the state directory
that a restore builds. docs/howto/back-up.md describes both commands; decision 79 gives the reasons.
"""
