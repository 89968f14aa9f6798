"""Measure how far a cluster scales: 8, 128 and 1,250 nodes of 8 GPUs on one machine.

The control plane is real: nats-server, scheduler, quota, audit and gateway as processes. The agents
are real `Agent` objects with a connection and a key each, many to a process (`swarm.py`); only
their jobs and devices are simulated (`jobs.py`), so a machine of two processors can hold them.
"""
