"""The scenario `cluster`: machines that fail in every way, under real jobs.

Each process of the cluster runs on a host of its own: a network namespace with an address. Each
nats-server has a file system of its own, in a file. `faults.py` chooses the faults from a seed,
`injecting.py` carries them out, `clients.py` records each client's operations, and `judging.py`
checks the history when all is quiet. It needs root, and says so where it has none.
"""
