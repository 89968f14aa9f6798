"""The kernel's side of the agent: processes, control groups, files that survive power loss."""
