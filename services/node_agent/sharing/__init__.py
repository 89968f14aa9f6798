"""Isolation of jobs that share a device: MPS daemons, and masks of compute units.

The scheduler decides which jobs share a device.
"""
