"""Messages and memory between processes of several nodes, over TCP or RDMA; docs/transport.md."""
