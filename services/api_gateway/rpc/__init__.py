"""The gRPC server: the services of `methods.py`, answered by the routes of REST.

A method builds a request for the app that serves HTTP, runs it in this process, and converts the
answer. So roles, bounds, records and idempotency exist once (decision 73). The messages are
generated (`services/api_gateway/description/`). Tests: tests/integration/test_rpc_*.py.
"""
