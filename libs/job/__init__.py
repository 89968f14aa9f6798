"""The library for users' programs, imported as `muster`: devices, memory pools and transport.

It imports nothing of `libs.common` and of `services`: a user's program needs no part of the
cluster.
"""
