"""Placement: `capacity` knows what is free on each node, and `choose` picks nodes and devices.
Pure.
"""
