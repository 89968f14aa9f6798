"""The health of this node's devices: errors and readings come in, checks and resets go out.

What follows from them is decided in `core/devices.py`, which is pure.
"""
