"""Commands that stay connected to a job: output, input, terminals, ports, waiting."""
