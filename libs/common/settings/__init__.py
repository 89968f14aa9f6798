"""Settings of every process, and where their values come from."""
