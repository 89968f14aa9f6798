"""How a job's command is run where it is not simply a process: by a container engine."""
