"""Tests that need a machine with an NVIDIA GPU: `make gpu`.

On other machines each test is skipped with the reason that the driver gives.
"""
