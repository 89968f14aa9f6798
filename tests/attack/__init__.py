"""Attacks on a running cluster, each with the key or the job that a real attacker would have.

`make attack` runs every test marked `attack`: all of this folder, and the tests elsewhere that
carry the mark themselves.
"""
