"""Orders and desired states of nodes, from acknowledged facts."""
