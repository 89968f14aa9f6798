"""The node's network: its RDMA ports, and links to other nodes."""
