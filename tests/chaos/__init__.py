"""`python -m tests.chaos`: a real cluster whose processes are killed and stopped while real jobs
run, and what must hold all the same.

The simulation (tests/sim) explores far more histories; this one has real processes, a real server
and a real kernel. The rules are in `checks.py`, each of them shown to find something by
`test_checks.py`.
"""
