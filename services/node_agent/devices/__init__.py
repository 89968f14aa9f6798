"""Devices of this node: commands, MIG instances, holders, and reading the drivers."""
