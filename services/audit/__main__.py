"""`python -m services.audit`: the process; `... verify`: check the archive against itself and against the log."""

import asyncio
import logging
import sys
from typing import Final

from libs.common import log_jetstream, snapshot_store
from libs.common.bus_nats import NatsBus
from libs.common.cancellation import before
from libs.common.clock import SystemClock
from libs.common.configuration import read
from libs.common.errors import MusterError
from libs.common.objects_nats import NatsObjects
from libs.common.service import run
from libs.common.settings import Settings
from services.audit.archive import Archive
from services.audit.service import Audit
from services.audit.store import Store
from services.audit.trimmer import Trimmer, policy_of
from services.audit.verify import render, verify

# A verifier at a terminal does not wait as long for the log as a service does.
CONNECT_S: Final = 3.0

logger = logging.getLogger(__name__)


async def main(settings: Settings, stop: asyncio.Event) -> None:
    """Archive every commit, answer for it, and trim the log behind it: that on a connection of the trimmer's own identity."""
    client = await before(
        stop, log_jetstream.connect(settings.servers, "audit", settings.nkey_seed, within_s=settings.log_connect_ms / 1_000)
    )
    store = Store(settings.audit_database)
    audit = Audit(log_jetstream.JetStreamLog(client), store, NatsBus(client), NatsObjects(client), settings.audit_begin)
    if not settings.trimmer_seed_file:
        logger.info("MUSTER_TRIMMER_SEED_FILE is not set: the log is not trimmed")
        await audit.run(stop)
    else:
        other = await before(
            stop, log_jetstream.connect(settings.servers, "trimmer", settings.trimmer_seed, within_s=settings.log_connect_ms / 1_000)
        )
        log, objects = log_jetstream.JetStreamLog(other), NatsObjects(other, settings.stream_replicas)
        trimmer = Trimmer(log, Archive(store), objects, NatsBus(other), SystemClock(), policy_of(settings))
        await audit.run(stop, lambda: trimmer.run(settings.trim_every_s))
        await other.close()
    await client.close()


async def check(settings: Settings) -> int:
    """Verify the chain; with MUSTER_NKEY_SEED_FILE or an open server also against the log. 0 = clean, 3 = something is wrong."""
    store = Store(settings.audit_database, read_only=True)
    store.head()  # what is no archive is said at once
    stream = None
    try:
        client = await log_jetstream.connect(settings.servers, "audit-verify", settings.nkey_seed, within_s=CONNECT_S)
        log = log_jetstream.JetStreamLog(client)
        await log.bounds()
        base = await snapshot_store.load(NatsObjects(client), snapshot_store.BASE_OBJECT)
        stream = log.read(base.seq if base is not None else 0)
    except MusterError as error:
        print(f"audit verify: the archive is not compared with the log: {error}", file=sys.stderr)
    report = await verify(store, stream)
    print(render(report))
    return 3 if report.findings else 0


def verify_command() -> int:
    """The command's exit code; a fault of the world is one line."""
    logging.basicConfig(handlers=[logging.NullHandler()])  # what the client says of its attempts is no news beside that line
    try:
        return asyncio.run(check(read(sys.argv[2:])))
    except MusterError as error:
        print(f"audit verify: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    if sys.argv[1:2] == ["verify"]:
        sys.exit(verify_command())
    run("audit", main)
