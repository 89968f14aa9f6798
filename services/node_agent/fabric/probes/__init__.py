"""Probes: two agents measure the link between them, as the scheduler ordered."""
