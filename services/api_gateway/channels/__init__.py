"""Streams between clients and jobs: output, terminals, ports and files."""
