"""Measured fabric: tournaments between nodes, and what their results say about nodes and links."""
