"""Muster's CUPTI library: traces any program that uses CUDA, when its agent orders it.

`muster_trace.c` is built on the node by `building.py`, where a C compiler and CUPTI's headers are.
"""
