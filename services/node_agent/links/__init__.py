"""Links of other agents to this one: tokens, sessions, and files that travel node to node."""
