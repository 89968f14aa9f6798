"""Who may do what: keys, roles, access records, and bounds of what a tenant may add."""
