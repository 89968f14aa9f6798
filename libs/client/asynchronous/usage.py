"""The usage of tenants, users and keys, and its charges.

Tests: tests/integration/test_client_resources.py.
"""

from collections.abc import Sequence

from libs.client import calls
from libs.client.asynchronous.connection import AsyncConnection
from libs.client.models.tenants import UsageList


class AsyncUsage:
    """Tokens and GPU time, from the archive."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def get(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        by: Sequence[str] = ("tenant", "user", "model"),
        tenant: str | None = None,
        user: str | None = None,
    ) -> UsageList:
        """Return the lines of a time, told apart by some of tenant, user, key and model.

        `since` and `until` are instants (RFC 3339) or durations before now, for example "7d".
        `tenant`: only what this tenant pays or uses. `user`: only the use of this user.
        """
        query = {"since": since, "until": until, "by": ",".join(by), "tenant": tenant, "user": user}
        return await self._connection.ask(calls.reading(calls.path_of("usage"), query), UsageList)
