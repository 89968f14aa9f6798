"""`python -m services.quota`: the process."""

import asyncio

from libs.common.process.cancellation import before
from libs.common.process.clock import SystemClock
from libs.common.process.service import freeze_collector, run
from libs.common.settings.settings import Settings
from libs.common.transport import connection_nats, log_jetstream, signed_snapshots
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.leader_nats import signs_on_own_connection
from libs.common.transport.objects_nats import NatsObjects
from libs.common.transport.pages_nats import NatsPages
from services.quota.service import Quota


async def main(settings: Settings, stop: asyncio.Event) -> None:
    """Follow the log, admit and charge."""
    client = await before(stop, connection_nats.connect_as(settings, "quota"))
    log, bus = log_jetstream.JetStreamLog(client), NatsBus(client)
    await Quota(
        log,
        bus,
        clock=SystemClock(),
        settings=settings,
        signs=lambda leading: signs_on_own_connection(settings, leading),
        store=signed_snapshots.of(settings, NatsObjects(client)),
        pages=NatsPages(client),
    ).run(stop, freeze_collector)
    await client.close()


if __name__ == "__main__":
    run("quota", main)
