"""Device and host memory that the agent grants to jobs: the broker process and its pure core.

The broker owns physical memory and knows who holds it. The agent starts the broker, keeps a copy of
each descriptor, and tells the broker which attempts may ask. The scheduler decides where a job with
a pool runs. Weights that stay between engines have a server of their own in `gms/`.
"""
