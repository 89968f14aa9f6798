"""Traces of jobs replayed in virtual time through the scheduler's own state, rules and placement:
`muster simulate`.

`readers/` make rows of a trace file, `trace.py` what is submitted, `cluster.py` the nodes;
`replay.py` is the live scheduler with its users and nodes as events, `resort.py` the protocol of
published figures (everything placed anew at each event); `meter.py` measures either.
"""
