"""Traces of jobs across nodes: one order to all nodes, their clocks, and one file of all ranks.

The gateway keeps nothing: nodes hold the state and the files, and any gateway can go on.
"""
