"""The gateway's work for node agents: admission, secrets, uploads, write budgets."""
