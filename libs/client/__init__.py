"""The Python client of a cluster, imported as `muster.Client` and `muster.AsyncClient`.

It speaks HTTP with a gateway, as docs/rest.md describes, and imports no service. `asynchronous/` is
the source; `python -m libs.docs` writes `synchronous/` from it. The classes in `models/` are made
from the gateway's OpenAPI description (`services/api_gateway/http/client_models.py`). For users:
docs/howto/use-the-python-client.md. Tests: tests/unit/test_client_*.py and
tests/integration/test_client*.py.
"""
