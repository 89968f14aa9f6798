"""Apply facts to the cluster's state: one function per kind, pure and total."""
