"""Jobs that a container engine runs."""
