"""Lease extension by a majority of agents while no scheduler answers."""
