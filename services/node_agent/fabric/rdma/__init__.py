"""RDMA devices of this node: their ports and counters."""
