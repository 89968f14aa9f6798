"""The lives of jobs, members, nodes and devices: tables of states and events."""
