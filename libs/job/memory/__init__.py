"""Device memory inside a job: the drivers that provide physical memory, and the pool over them."""
