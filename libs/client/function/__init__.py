"""Functions that run as jobs: packed here, run on a node, and their results read back.

`runner.py` is the program on the node. Tests: tests/unit/test_client_function.py and
tests/integration/test_client_functions.py.
"""
