"""The scheduler's rules: each one proposes facts from the state."""
