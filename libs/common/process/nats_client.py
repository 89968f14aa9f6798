"""Imports the client of NATS without aiohttp, which it needs for servers behind WebSockets only.

Importing aiohttp takes a third of the start of a scheduler or an agent. A process that uses aiohttp
itself imports it as usual. `service.py` and the launcher import this file before the transport.
Tests: tests/unit/test_lean_imports.py.
"""

import sys
from importlib import import_module
from typing import Final

UNUSED: Final = "aiohttp"


def _import() -> None:
    if UNUSED in sys.modules:
        return
    sys.modules[UNUSED] = None  # type: ignore[assignment]
    try:
        import_module("nats.aio.transport")
    finally:
        del sys.modules[UNUSED]


_import()
