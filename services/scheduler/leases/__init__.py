"""Leases of agents: renewal, silence, and the start of a term."""
