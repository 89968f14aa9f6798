"""How jobs that share a device are kept apart on it: MPS daemons, masks of compute units.

Which jobs share one is the scheduler's word.
"""
