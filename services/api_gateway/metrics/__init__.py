"""Metrics that a gateway derives from the cluster's state, for Prometheus."""
