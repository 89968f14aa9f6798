"""The diagnosis of a job that is stuck or slow: the evidence, and the rules that judge it. Pure.

`evidence.py` has the types, `places.py` and `collectives.py` read stacks and recorders, `rules.py`
gives the verdict. For users: docs/diagnose.md.
"""
