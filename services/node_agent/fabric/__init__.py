"""The node's network: its RDMA ports, links to other nodes, and probes that measure them."""
