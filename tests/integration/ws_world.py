"""A client of GET /v1/ws for tests, over the library `websockets`."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.integration.gateway_world import KEY, World

WITHIN_S = 10.0
# Frames about the connection itself.
OF_CONNECTION = ("hello", "alive")


class Socket:
    """One connection; `frames` are all that came, `seqs` the last commit of each subscription."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.frames: list[dict[str, Any]] = []
        self.seqs: dict[str, int] = {}

    async def tell(self, **fields: Any) -> None:
        await self.connection.send(json.dumps(fields))

    async def subscribe(
        self, name: str, topic: str, after: int | None = None, **chosen: Any
    ) -> None:
        await self.tell(op="subscribe", id=name, topic=topic, filter=chosen, after=after)

    async def next(self) -> dict[str, Any]:
        """The next frame that is not about the connection."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                frame: dict[str, Any] = json.loads(await self.connection.recv())
                if frame["event"] not in OF_CONNECTION:
                    break
        self.frames.append(frame)
        if frame.get("id"):
            self.seqs[frame["id"]] = frame["seq"]
        return frame

    async def until(self, event: str, name: str = "") -> list[dict[str, Any]]:
        """The frames up to the next one of this event, with it."""
        found = [await self.next()]
        while found[-1]["event"] != event or name not in ("", found[-1].get("id")):
            found.append(await self.next())
        return found

    async def closed(self) -> tuple[int, str]:
        """How the gateway closed the connection, after it has sent what it had to."""
        async with asyncio.timeout(3 * WITHIN_S):
            await self.connection.wait_closed()
        protocol = self.connection.protocol
        assert protocol.close_code is not None
        return protocol.close_code, protocol.close_reason or ""


@asynccontextmanager
async def socket(
    world: World, key: str | None = KEY, url: str = "", **options: Any
) -> AsyncIterator[Socket]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    headers |= options.pop("additional_headers", {})
    address = (url or world.url).replace("http", "ws", 1) + "/v1/ws"
    async with connect(
        address, additional_headers=headers, max_size=None, close_timeout=1, **options
    ) as connection:
        yield Socket(connection)


async def key_of(world: World, role: str, user: str, tenant: str = "default") -> str:
    made = await world.ask(
        "POST", "/v1/keys", 201, json={"user": user, "tenant": tenant, "role": role}
    )
    return str(made["key"])
