"""The order of the queue, tenant limits and backfill."""
