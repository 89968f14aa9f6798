"""Nodes and their devices: read, drain, take out of service, bring back.

Tests: tests/integration/test_client_resources.py.
"""

from collections.abc import AsyncIterator

from libs.client import calls
from libs.client.asynchronous.connection import AsyncConnection
from libs.client.asynchronous.pages import pages
from libs.client.models.nodes import GpuFull, NodeFull, NodeShown


class AsyncNodes:
    """The nodes of the cluster."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def get(self, node_id: str) -> NodeFull:
        """Return a node with its devices. Raises NotFound."""
        return await self._connection.ask(calls.reading(calls.path_of("nodes", node_id)), NodeFull)

    def list(self, *, state: str | None = None) -> AsyncIterator[NodeShown]:
        """Return the nodes without their devices; removed ones only if `state` asks for them."""
        query = {"state": state}
        return pages(self._connection, calls.path_of("nodes"), "nodes", NodeShown, query)

    def gpus(self, *, node: str | None = None, state: str | None = None) -> AsyncIterator[GpuFull]:
        """Return the devices with their health and their holders."""
        query = {"node": node, "state": state}
        return pages(self._connection, calls.path_of("gpus"), "gpus", GpuFull, query)

    async def drain(self, node_id: str) -> NodeFull:
        """Start no new jobs on the devices of a node; running jobs continue."""
        return await self._service(node_id, "draining", False)

    async def offline(self, node_id: str, *, force: bool = False) -> NodeFull:
        """Take the devices of a node out of service. `force` ends the jobs that hold them.

        Raises Conflict while jobs hold them.
        """
        return await self._service(node_id, "offline", force)

    async def online(self, node_id: str) -> NodeFull:
        """Allow new jobs again."""
        return await self._service(node_id, "online", False)

    async def _service(self, node_id: str, service: str, force: bool) -> NodeFull:
        body = self._connection.by_user({"service": service, "force": force})
        path = calls.path_of("nodes", node_id, "service")
        call = calls.changing("PUT", path, body, repeatable=True)
        return await self._connection.ask(call, NodeFull)
