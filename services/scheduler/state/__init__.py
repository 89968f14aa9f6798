"""The scheduler's state: the cluster's fold and the indexes over it."""
