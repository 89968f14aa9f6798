"""Secrets of the tenant: set once, never shown again.

Tests: tests/integration/test_client_resources.py.
"""

from collections.abc import AsyncIterator

from libs.client import calls
from libs.client.asynchronous.connection import AsyncConnection
from libs.client.asynchronous.pages import pages
from libs.client.models.tenants import SecretShown


class AsyncSecrets:
    """The secrets of the tenant. Jobs name them: `submit(..., secrets={"VARIABLE": "NAME"})`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def set(self, name: str, value: str) -> SecretShown:
        """Set the value of a secret. Attempts that begin from now on get it."""
        path = calls.path_of("secrets", name)
        call = calls.changing("PUT", path, {"value": value}, repeatable=True)
        return await self._connection.ask(call, SecretShown)

    def list(self) -> AsyncIterator[SecretShown]:
        """Return names and versions, without values."""
        return pages(self._connection, calls.path_of("secrets"), "secrets", SecretShown)

    async def remove(self, name: str) -> None:
        """Remove a secret. Raises NotFound."""
        await self._connection.send(calls.changing("DELETE", calls.path_of("secrets", name)))
