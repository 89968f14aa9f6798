"""Metrics of this node's devices for Prometheus."""
