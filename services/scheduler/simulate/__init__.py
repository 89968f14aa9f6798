"""`muster simulate`: traces of jobs in virtual time, through the scheduler's own state, rules and
placement.

`readers/` read trace files into rows, `trace.py` turns rows into submissions, `nodes.py` makes the
nodes. `replay.py` is the live scheduler with users and nodes as events. `resort.py` is the protocol
of published figures, which places everything again at each event. `meter.py` measures either.
"""
