"""All WebSockets of one gateway at GET /v1/ws: their bounds, their end, and slow readers.

Tests: tests/integration/test_gateway_ws.py, tests/attack/test_ws_clients.py.
"""

import asyncio
from typing import Final, Protocol

from libs.common.open_share import BUSY_S, TENANT_FULL, OpenShare
from services.api_gateway.problems import Problem
from services.api_gateway.telemetry import SocketTelemetry

ROUTE: Final = "/v1/ws"
SOCKETS_MAX: Final = 4_000
# Subscriptions and the names in their filters' `ids`, together.
SUBSCRIPTIONS_MAX: Final = 8_000
# Connections that have not sent their key yet.
STRANGERS_MAX: Final = 64
# Clients are looked at so often within the time that they may leave their frames unread.
LOOKS: Final = 4
LOOK_MAX_S: Final = 1.0

# Close codes of RFC 6455 and of IANA's registry.
GOING_AWAY: Final = 1001
POLICY: Final = 1008
TRY_AGAIN_LATER: Final = 1013


class Client(Protocol):
    """One connection (`client.py`)."""

    def unread_ns(self) -> int:
        """Return how long the client has taken nothing although frames wait for it."""

    def close(self, code: int, why: str, reason: str) -> None:
        """Close with a code and a reason; `why` is the reason in one word, for the metrics."""

    def last_seq(self) -> int:
        """Return the commit up to which the client has everything of all its subscriptions."""


class Sockets:
    """The connections of one gateway."""

    def __init__(self, telemetry: SocketTelemetry, unread_ms: int) -> None:
        self.telemetry = telemetry
        self.unread_ms = unread_ms
        self.clients: set[Client] = set()
        self.connections = OpenShare(SOCKETS_MAX)
        self.subscriptions = OpenShare(SUBSCRIPTIONS_MAX)
        self.strangers = 0
        self.is_stopping = False

    def bound(self, most: int) -> None:
        """Allow at most so many connections, because each needs a file."""
        self.connections.most = min(SOCKETS_MAX, most)

    def check_stranger(self) -> None:
        """Raise Problem 503 if too many connections have not sent their key yet."""
        self.check_stopping()
        if self.strangers >= STRANGERS_MAX:
            raise Problem(
                503,
                f"{STRANGERS_MAX} WebSockets at this gateway have not sent their key yet, the "
                "maximum: send the key in the header Authorization, or try again",
            )

    def check_stopping(self) -> None:
        if self.is_stopping:
            raise Problem(503, "this gateway is stopping: use another one, or try again")

    def take(self, tenant: str) -> None:
        """Count a connection of the tenant.

        Raises Problem 503 if the gateway stops or has its maximum, and 429 if the tenant has its
        share of it.
        """
        self.check_stopping()
        _take(self.connections, tenant, "WebSockets")

    def take_subscription(self, tenant: str, amount: int) -> None:
        """Count a subscription of the tenant: one, and one for each name in its `ids`.

        Raises as `take`.
        """
        _take(self.subscriptions, tenant, "subscriptions and names in filter.ids", amount)

    def enter(self, client: Client) -> None:
        self.clients.add(client)
        self.telemetry.connections.set(len(self.clients))

    def leave(self, client: Client) -> None:
        self.clients.discard(client)
        self.telemetry.connections.set(len(self.clients))

    def stop(self) -> None:
        """Close all connections, because the gateway stops."""
        self.is_stopping = True
        for client in list(self.clients):
            client.close(
                GOING_AWAY,
                "stopping",
                f"the gateway stops: connect again and continue after {client.last_seq()}",
            )

    async def run(self) -> None:
        """Cut off clients that do not read, for ever."""
        pause_s = min(LOOK_MAX_S, self.unread_ms / 1_000 / LOOKS)
        while True:
            await asyncio.sleep(pause_s)
            for client in list(self.clients):
                if client.unread_ns() > self.unread_ms * 1_000_000:
                    client.close(
                        TRY_AGAIN_LATER,
                        "unread",
                        f"nothing was read for {self.unread_ms / 1_000:g} s: continue after "
                        f"{client.last_seq()}",
                    )


def _take(share: OpenShare, tenant: str, what: str, amount: int = 1) -> None:
    refused = share.take(tenant, amount)
    if refused == TENANT_FULL:
        raise Problem(
            429,
            f"tenant {tenant} has {share.of_tenant.get(tenant, 0)} {what} open, and {amount} more "
            "would be most of what this gateway has left: close some, or use another gateway",
            retry_after_s=BUSY_S,
        )
    if refused:
        raise Problem(
            503,
            f"this gateway has {share.held} {what} open, and {amount} more would be above the "
            f"maximum of {share.most}: use another one, or try again",
            retry_after_s=BUSY_S,
        )
