"""The lives of jobs, nodes and devices, as tables of states and events."""
