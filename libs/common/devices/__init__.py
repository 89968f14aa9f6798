"""Devices: controls, errors, MIG, partitions, topology and visibility."""
