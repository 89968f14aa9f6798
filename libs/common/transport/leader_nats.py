"""The signs of life of a leader, in a thread and on a connection of their own.

So neither a long decision nor a full queue of messages of the service delays them. They end if the
service's first connection is cut off.
"""

from collections.abc import Callable

from nats.aio.client import Client

from libs.common.leadership.beside import in_thread
from libs.common.leadership.leading import Leadership, Leading, ask_first, give_signs
from libs.common.process.serving_tasks import serve_together
from libs.common.settings.settings import Settings
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect_as


async def signs_on_own_connection(
    settings: Settings, leading: Leading, leadership: Callable[[Client], Leadership] | None = None
) -> None:
    """Give the leader's signs of life until cancelled; `leadership` renews its term."""

    async def give() -> None:
        client = await connect_as(settings, leading.service)
        try:
            renews = leadership(client) if leadership is not None else None
            bus = NatsBus(client)
            await serve_together(
                signs=give_signs(leading, bus, renews), first=ask_first(leading, bus)
            )
        finally:
            await client.close()

    await in_thread(give, name="signs-of-life")
