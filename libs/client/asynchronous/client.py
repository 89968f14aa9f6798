"""The client: one object for one cluster and one key.

Tests: tests/integration/test_client_cluster.py.
"""

import os
from types import TracebackType
from typing import Final, Self

from libs.client import calls
from libs.client.address import at_address, chosen
from libs.client.asynchronous.allocations import AsyncAllocations
from libs.client.asynchronous.connection import AsyncConnection
from libs.client.asynchronous.deployments import AsyncModels
from libs.client.asynchronous.functions import AsyncFunctions
from libs.client.asynchronous.jobs import AsyncJobs
from libs.client.asynchronous.locks import AsyncLocks
from libs.client.asynchronous.nodes import AsyncNodes
from libs.client.asynchronous.secrets import AsyncSecrets
from libs.client.asynchronous.usage import AsyncUsage
from libs.client.errors import InvalidRequest, field_of
from libs.client.models.cluster import ClusterShown, Principal, Version
from libs.client.profile import away_s, read_profile
from libs.client.timing import ANSWER_S, RETRY_S, Timing, check_bounds
from libs.common.errors import Refused

CALLS_AT_ONCE: Final = 32


class AsyncClient:
    """A client of a cluster.

    Without arguments it uses the profile of `muster up` or `muster login`, and MUSTER_URL and
    MUSTER_API_KEY of the environment, like the command. `timeout_s` bounds the wait for one answer,
    `retry_s` the tries of one call. Waits and followed streams outlive a gateway that is away for
    MUSTER_AWAY_S. Close it, or use it in a `with` block.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        profile: str | os.PathLike[str] | None = None,
        timeout_s: float = ANSWER_S,
        retry_s: float = RETRY_S,
        calls_at_once: int = CALLS_AT_ONCE,
    ) -> None:
        check_bounds(timeout_s, retry_s, calls_at_once)
        try:
            environ = chosen(os.environ, url, key, profile)
            found, patience_s = read_profile(environ), away_s(environ)
            if url is not None:
                found = at_address(found)
        except Refused as error:
            text = str(error)
            raise InvalidRequest(text, field=field_of(text) or "profile") from error
        timing = Timing(timeout_s=timeout_s, retry_s=retry_s, away_s=patience_s)
        self._connection = AsyncConnection(found, timing, calls_at_once)
        self.url = found.url
        self.jobs = AsyncJobs(self._connection)
        self.functions = AsyncFunctions(self.jobs)
        self.models = AsyncModels(self._connection)
        self.allocations = AsyncAllocations(self._connection)
        self.secrets = AsyncSecrets(self._connection)
        self.usage = AsyncUsage(self._connection)
        self.locks = AsyncLocks(self._connection)
        self.nodes = AsyncNodes(self._connection)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.url}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.close()

    async def whoami(self) -> Principal:
        """Return user, tenant and role of the key."""
        return await self._connection.ask(calls.reading(calls.path_of("whoami")), Principal)

    async def version(self) -> Version:
        """Return the version of the gateway."""
        return await self._connection.ask(calls.reading(calls.path_of("version")), Version)

    async def cluster(self) -> ClusterShown:
        """Return the numbers of jobs, nodes and devices by state."""
        return await self._connection.ask(calls.reading(calls.path_of("cluster")), ClusterShown)
