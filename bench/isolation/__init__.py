"""Isolation between tenants: what the storm of one tenant does to the waits of the others."""
