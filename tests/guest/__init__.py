"""A QEMU guest with Soft-RoCE, in which real verbs run on any machine: `make rdma`."""
