"""The log, core NATS, buckets and snapshots, with twins in memory. Only this room uses nats-py."""
