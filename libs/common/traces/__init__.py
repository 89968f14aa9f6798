"""Traces of jobs: clock offsets between nodes, and events of all ranks on one clock.

Pure. The node agent aligns its own processes' events (`services/node_agent/tracing/`); a gateway
joins what the nodes have (`services/api_gateway/traces/`). Tests: tests/unit/test_clock_offset.py,
tests/unit/test_chrome_events.py, tests/property/test_clock_bounds.py.
"""
