"""How this node's devices are: what is told of them (`watch.py`, `kernel_log.py`), and what follows
of it (`devices.py`, pure).
"""
