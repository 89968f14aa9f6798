"""The lease watchdog: the second enforcer of leases, and the agent's watch over it."""
