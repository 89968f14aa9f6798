"""A job's way on this node: from the order to the supervisor, and from the end to the release."""
