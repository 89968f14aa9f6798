"""GET /v1/ws: from the upgrade to the end of the connection.

A client signs in by the header of its upgrade, or by its first message, which browsers need that
have a key and no session. Tests: tests/integration/test_gateway_ws.py.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.http.places import places_by_files
from services.api_gateway.problems import Denied, Problem
from services.api_gateway.ws.client import SocketClient
from services.api_gateway.ws.counts import Counts
from services.api_gateway.ws.outbox import Link
from services.api_gateway.ws.protocol import BadMessage, read_key
from services.api_gateway.ws.sockets import POLICY, ROUTE, TRY_AGAIN_LATER

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

# How long a client without a key may take to send it.
SIGN_IN_S: Final = 5.0
# The name under which the scope has the connection below (`http/socket_protocol.py`).
EXTENSION: Final = "muster.socket"
SWITCHING: Final = 101
UNAUTHORISED: Final = 401

# Records one request: scope, principal, route, status, why it was denied.
Record = Callable[[Scope, Principal | None, str, int, str], None]


class SocketApp:
    """The route of one HTTP server. `app` takes the requests to models."""

    def __init__(self, gateway: "Gateway", app: ASGIApp, record: Record) -> None:
        self.gateway = gateway
        self.app = app
        self.record = record
        self.counts: Counts | None = None
        # Other connections need the rest of the files.
        gateway.sockets.bound(places_by_files().most // 2)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection. Raises Problem before it is accepted."""
        sockets, principal = self.gateway.sockets, scope.get("principal")
        link: Link | None = scope["extensions"].get(EXTENSION)
        if link is None:
            return  # the client has left
        if principal is not None:
            with self._place(principal.tenant):
                await self._accept(receive, send)
                await self._serve(scope, receive, link, principal=principal, key=scope["key"])
            return
        sockets.check_stranger()
        sockets.strangers += 1
        try:
            await self._accept(receive, send)
            found = await self._sign_in(scope, receive, link)
        finally:
            sockets.strangers -= 1
        if found is None:
            return
        principal, key = found
        try:
            with self._place(principal.tenant):
                await self._serve(scope, receive, link, principal=principal, key=key)
        except Problem as problem:
            link.cut(TRY_AGAIN_LATER, problem.detail)

    @contextmanager
    def _place(self, tenant: str) -> Iterator[None]:
        """Hold a place for a connection. Raises Problem if the tenant can have none."""
        sockets, place = self.gateway.sockets, self.gateway.places.take(tenant)
        try:
            sockets.take(tenant)
            try:
                yield
            finally:
                sockets.connections.give_back(tenant)
        finally:
            place.leave()

    async def _accept(self, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await receive()  # websocket.connect

    async def _sign_in(
        self, scope: Scope, receive: Receive, link: Link
    ) -> tuple[Principal, str] | None:
        """Return the principal of the key in the first message; None if the connection is over."""
        gateway = self.gateway
        try:
            async with asyncio.timeout(SIGN_IN_S):
                message = await receive()
            if message["type"] != "websocket.receive":
                return None
            text = message.get("text")
            key = read_key(message["bytes"] if text is None else text)
        except TimeoutError:
            link.cut(POLICY, f"no key came within {SIGN_IN_S:g} s: send it first")
            return None
        except BadMessage as error:
            self.record(scope, None, ROUTE, UNAUTHORISED, "no key")
            link.cut(POLICY, str(error))
            return None
        principal, why = gateway.keys.principal(key, gateway.cluster, gateway.clock.wall_ns())
        denied: Denied | None = None
        if principal is not None:
            denied = roles.denial(principal, "GET", ROUTE)
        if principal is None or denied is not None:
            reason = denied.detail if denied is not None else why
            self.record(
                scope, principal, ROUTE, 403 if denied is not None else UNAUTHORISED, reason
            )
            link.cut(POLICY, f"{reason}: sign in with another key")
            return None
        self.record(scope, principal, ROUTE, SWITCHING, "")
        return principal, key

    async def _serve(
        self, scope: Scope, receive: Receive, link: Link, principal: Principal, key: str
    ) -> None:
        if self.counts is None:
            self.counts = Counts(self.gateway)

        def note(noted: Scope, status: int, denied: str) -> None:
            self.record(noted, principal, ROUTE, status, denied)

        await SocketClient(
            gateway=self.gateway,
            app=self.app,
            values=self.counts,
            scope=scope,
            receive=receive,
            link=link,
            principal=principal,
            key=key,
            note=note,
        ).run()
