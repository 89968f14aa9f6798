"""Weights that stay in device memory between processes, shared by the GMS wire protocol.

The server process owns the memory; engines started with `--load-format gms` write it once and map
it again after a restart. `ResidentWeights` is the agent's side. docs/resident-weights.md shows the
use, docs/decisions/0046 compares designs.
"""
