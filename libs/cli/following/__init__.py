"""Connections to a running job: output, input, terminals, forwarded ports, waiting."""
