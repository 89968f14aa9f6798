"""What only a machine with an NVIDIA GPU can show: `make gpu`.

Elsewhere each test is skipped, with the reason that the driver gives.
"""
