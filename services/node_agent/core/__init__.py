"""The agent's pure core: its state, what each observation changes, and which actions follow."""
