"""Archives of jobs on this node: kept for its next jobs, and fetched from nodes that have them."""
