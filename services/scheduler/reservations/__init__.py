"""Devices and nodes that are reserved for jobs or maintenance."""
