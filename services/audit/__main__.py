"""Starts the audit service (`python -m services.audit`).

With a verb (`verify`, `export`, `migrate`) it runs a command on the archive instead
(`commands.py`).
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Final

from libs.common import subjects
from libs.common.errors import Fenced
from libs.common.leadership.candidate import Candidate
from libs.common.leadership.leading import Leading
from libs.common.leadership.telling import tell
from libs.common.process.cancellation import before
from libs.common.process.clock import SystemClock
from libs.common.process.pulse import Pulse
from libs.common.process.service import run
from libs.common.process.serving_tasks import serve_together
from libs.common.settings.settings import Settings
from libs.common.transport import connection_nats, log_jetstream, signed_snapshots
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.leader_nats import signs_on_own_connection
from libs.common.transport.objects_nats import NatsObjects
from libs.common.transport.stream_nats import NatsStream
from libs.common.transport.terms_nats import KvTerms
from services.audit.answers import Answers
from services.audit.chain.heads import Head, Signer, encode
from services.audit.chain.notary import Heads, Notary
from services.audit.commands import call
from services.audit.export.events import source_of
from services.audit.export.publisher import Publisher
from services.audit.service import FOLLOWER, Audit
from services.audit.store.archive import Archive
from services.audit.store.store import Store
from services.audit.trim.trimmer import Trimmer, policy_of

AUDIT: Final = "audit"
HEADS_BYTES: Final = 64 << 20

logger = logging.getLogger(__name__)


async def main(settings: Settings, stop: asyncio.Event) -> None:
    """Wait for the turn to lead; then archive every commit, answer requests, publish events, sign
    heads, and trim the log.

    Several audit processes share one archive. Its primary key refuses the one that no longer leads,
    and its trimmer proves the term before each write.
    The trimmer has its own connection, because only its identity may purge the log.
    """
    client = await before(stop, connection_nats.connect_as(settings, AUDIT))
    store = Store(settings.audit_database)
    pulse, clock, bus = Pulse(settings.alive_file, FOLLOWER), SystemClock(), NatsBus(client)
    leading = Leading(AUDIT, clock, settings.term_ms)
    candidate = Candidate(AUDIT, bus, clock, settings.term_ms, pulse)
    audit = Audit(
        log=log_jetstream.JetStreamLog(client),
        store=store,
        snapshots=signed_snapshots.of(settings, NatsObjects(client)),
        begin=settings.audit_begin,
        pulse=pulse,
    )

    async def lead() -> None:
        terms = KvTerms(client, AUDIT)
        await before(stop, _take_over(candidate, leading, terms, settings.instance))
        await _lead(settings, stop, client=client, leading=leading, audit=audit, terms=terms)

    await serve_together(
        leader=lead(),
        telling=tell(
            bus,
            AUDIT,
            settings.instance,
            lambda: (candidate.leads, candidate.epoch, audit.archived),
        ),
    )
    await client.close()


async def _lead(
    settings: Settings,
    stop: asyncio.Event,
    client: connection_nats.Client,
    leading: Leading,
    audit: Audit,
    terms: KvTerms,
) -> None:
    """Lead until `stop`. Raises Fenced if the term is over.

    Signs of life begin before the work: to migrate a large archive, or to wait for a log without a
    leader, takes longer than followers wait.
    """
    await leading.listen(NatsBus(client))
    await serve_together(
        work=_work(settings, stop, client=client, epoch=leading.epoch, audit=audit, terms=terms),
        beats=leading.keep_beating(),
        term=terms.watch(leading.epoch),
        signs=signs_on_own_connection(settings, leading),
    )


async def _work(
    settings: Settings,
    stop: asyncio.Event,
    client: connection_nats.Client,
    epoch: int,
    audit: Audit,
    terms: KvTerms,
) -> None:
    """Archive, answer, publish, sign and trim until `stop`."""
    store, source = audit.store, source_of(settings.cluster_id)
    await before(stop, audit.open())
    replicas = settings.stream_replicas
    beside: list[Callable[[], Coroutine[None, None, None]]] = []
    heads = _heads_stream(client, replicas)
    notary = _notary(settings, store, audit, heads)
    if notary is not None:
        beside.append(partial(notary.run, settings.audit_head_every_s, settings.audit_head_commits))
    if settings.audit_stream_bytes:
        stream = _events_stream(client, replicas, settings.audit_stream_bytes)
        beside.append(Publisher(store, stream, source, audit.beyond).run)
    newest = notary.newest if notary is not None else _no_head
    await Answers(store, source, audit.beyond, newest, audit.log_end).listen(NatsBus(client))
    other = None
    if settings.trimmer_seed_file:
        other = await before(
            stop, connection_nats.connect_as(settings, "trimmer", settings.trimmer_seed)
        )
        log = log_jetstream.JetStreamLog(other)
        objects = signed_snapshots.of(settings, NatsObjects(other, replicas), settings.trimmer_seed)
        trimmer = Trimmer(
            log=log,
            archive=Archive(store),
            store=objects,
            bus=NatsBus(other),
            clock=SystemClock(),
            policy=policy_of(settings),
            prove_term=partial(terms.prove, epoch),
        )
        beside.append(partial(trimmer.run, settings.trim_every_s))
    else:
        logger.info("MUSTER_TRIMMER_SEED_FILE is not set: the log is not trimmed")
    await audit.run(stop, beside)
    if other is not None:
        await other.close()


async def _take_over(candidate: Candidate, leading: Leading, terms: KvTerms, instance: str) -> None:
    """Begin a term when no other audit leads. One that has just begun gets time to answer.

    If the outcome of a term's write is lost, the process takes its own term for another one's, and
    begins the next when that one stays silent.
    """
    candidate.epoch, candidate.began_at_ns = await terms.begun()

    async def begin() -> int:
        try:
            return await terms.begin(candidate.epoch, instance)
        except Fenced:
            candidate.epoch = await terms.newest()
            raise

    epoch = await candidate.lead(begin)
    leading.begin(epoch, renewed=leading.clock.boot_ns())
    logger.info("term %d began", epoch)


async def _no_head() -> None:
    """Return the newest head where no key is set: none."""


def _heads_stream(client: connection_nats.Client, replicas: int) -> NatsStream:
    """Return the stream of the signed heads."""
    return NatsStream(
        client,
        name=subjects.HEADS_STREAM,
        subject=subjects.AUDIT_HEADS,
        replicas=replicas,
        max_bytes=HEADS_BYTES,
    )


def _events_stream(client: connection_nats.Client, replicas: int, max_bytes: int) -> NatsStream:
    """Return the stream of the exported events, bounded to `max_bytes`."""
    return NatsStream(
        client,
        name=subjects.AUDIT_STREAM,
        subject=subjects.AUDIT_EVENTS,
        replicas=replicas,
        max_bytes=max_bytes,
    )


def _notary(settings: Settings, store: Store, audit: Audit, stream: NatsStream) -> Notary | None:
    """Return the notary, which signs the heads; None if no key is set."""
    seed = settings.audit_key
    if seed is None:
        logger.info("MUSTER_AUDIT_KEY_FILE is not set: no head of the chain is signed")
        return None
    files = Heads(Path(settings.state))

    async def publish(head: Head) -> None:
        await stream.make()
        await stream.put(head.signature, encode(head))

    return Notary(
        store=store,
        signer=Signer(seed),
        files=files,
        cluster=settings.cluster_id,
        clock=SystemClock(),
        archived=lambda: audit.archived,
        publish=publish,
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(call(sys.argv[1:]))
    run("audit", main)
