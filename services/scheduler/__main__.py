"""`python -m services.scheduler`: the process."""

import asyncio

from libs.common.agreement.questions import naming_keys
from libs.common.errors import Refused
from libs.common.process.cancellation import before
from libs.common.process.clock import SystemClock
from libs.common.process.service import freeze_collector, run
from libs.common.settings.settings import Settings
from libs.common.transport import connection_nats, log_jetstream, signed_snapshots
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.kv_nats import KvLeadership, create_buckets
from libs.common.transport.leader_nats import signs_on_own_connection
from libs.common.transport.objects_nats import NatsObjects
from services.scheduler.placement.strategies import STRATEGIES
from services.scheduler.plugins import plugins
from services.scheduler.service import Scheduler


async def main(settings: Settings, stop: asyncio.Event) -> None:
    """Create the cluster's stream and buckets if needed, then schedule.

    Raises Refused if the configured placement strategy does not exist.
    """
    plugged = plugins.load()
    known = (*STRATEGIES, *plugged.scores)
    if settings.placement not in known:
        raise Refused(
            f"MUSTER_PLACEMENT={settings.placement!r} is no placement strategy: choose "
            f"{', '.join(known)}"
        )
    client = await before(stop, connection_nats.connect_as(settings, "scheduler"))
    await before(
        stop, log_jetstream.create_stream(client, settings.stream_replicas, settings.stream_bytes)
    )
    await before(stop, create_buckets(client, settings))
    log = log_jetstream.JetStreamLog(client)
    kept = signed_snapshots.of(settings, NatsObjects(client))
    scheduler = Scheduler(
        log,
        bus=NatsBus(client),
        clock=SystemClock(),
        settings=settings,
        signs=lambda leading: signs_on_own_connection(settings, leading, KvLeadership),
        store=kept,
        plugins=plugged,
    )
    await naming_keys(scheduler.run(stop, freeze_collector), scheduler.bus, scheduler.agreement)
    await client.close()


if __name__ == "__main__":
    run("scheduler", main)
