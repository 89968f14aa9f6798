"""Trimming on a real server with real keys: what goes is archived, who starts later begins from the
base, the archive has the rest.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.errors import Corrupt, Fenced, Trimmed, Unavailable
from libs.common.leadership.leading import give_signs
from libs.common.model import JobId, JobSpec
from libs.common.process.clock import SystemClock
from libs.common.settings.settings import Settings
from libs.common.state.cluster import Cluster
from libs.common.transport import signed_snapshots, snapshot, snapshot_store
from libs.common.transport.archive import archived, job_seqs, whole
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.log import Entry
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.common.transport.objects_nats import NatsObjects
from libs.common.transport.pages_nats import NatsPages
from libs.common.transport.snapshot_store import BASE_HEAD_OBJECT, BASE_OBJECT
from libs.embedded import identity
from libs.embedded.servers import start_servers
from services.audit.answers import Answers
from services.audit.chain.verify import verify
from services.audit.service import Audit
from services.audit.store.archive import Archive
from services.audit.store.store import Store
from services.audit.trim.trim import Policy
from services.audit.trim.trimmer import Trimmer
from services.quota.service import Quota
from tests.integration.audit_world import no_head
from tests.integration.test_embedded_permissions import World

LOG_BYTES = 64 << 20
COMMITS = 60
KEPT = 10


class Trimming:
    """A cluster's log with a gateway's and quota's commits; audit and quota run, the test plays the
    scheduler.
    """

    def __init__(self, world: World, path: Path) -> None:
        self.world = world
        self.url = f"sqlite:///{path / 'audit.db'}"
        self.stop = asyncio.Event()
        self.running: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        await create_stream(await self.world.client("scheduler"), 1, LOG_BYTES // 2)
        await self.submit(1, COMMITS)
        self.quota = await self.quota_process()
        self.audit = await self.audit_process(Store(self.url))
        self.running = [
            asyncio.create_task(self.quota.run(self.stop)),
            asyncio.create_task(self.audit.run(self.stop)),
        ]

        async def position(_: str, __: bytes) -> bytes:
            return b"%d" % self.quota.state.seq

        await (await self.world.bus("scheduler")).subscribe(
            subjects.ask_scheduler("position"), position
        )
        self.last = await self.settle(self.quota)
        await self.until(lambda: self.audit.archived == self.last)

    async def settle(self, quota: Quota) -> int:
        """Until quota has said its word on every job; gives the log's last sequence."""
        log = await self.world.log("gateway-a")
        async with asyncio.timeout(20):
            while True:
                last = (await log.bounds())[1]
                if quota.state.seq == last and quota.writer.idle and not quota.state.undecided:
                    return last
                await asyncio.sleep(0.05)

    async def submit(self, first: int, count: int) -> None:
        """A submission in each commit; quota then admits each in one of its own."""
        log, subject = await self.world.log("gateway-a"), subjects.gateway("a")
        last = await log.last(subject)
        expected = last.seq if last else 0
        for number in range(first, first + count):
            fact = f.JobSubmitted(job_id=JobId(f"job-{number}"), spec=JobSpec(command=("true",)))
            data = f.encode(
                f.Commit(
                    version=f.VERSION,
                    min_reader=f.VERSION,
                    writer=subject,
                    number=number,
                    epoch=0,
                    at_ns=number,
                    seen=expected,
                    facts=(fact,),
                )
            )
            expected = await log.append(subject, data, expected)

    async def quota_process(self) -> Quota:
        client = await self.world.client("quota")
        return Quota(
            log=JetStreamLog(client),
            bus=NatsBus(client),
            clock=SystemClock(),
            settings=Settings(),
            signs=lambda leading: give_signs(leading, NatsBus(client)),
            store=NatsObjects(client),
            pages=NatsPages(client),
        )

    async def audit_process(self, store: Store, begin: int = 1) -> Audit:
        client = await self.world.client("audit")
        audit = Audit(JetStreamLog(client), store, NatsObjects(client), begin)
        await audit.open()
        await Answers(store, "test", audit.beyond, no_head, audit.log_end).listen(NatsBus(client))
        return audit

    async def trimmer(self, keep: int = KEPT) -> Trimmer:
        client = await self.world.client("trimmer")
        policy = Policy(keep, 0, 60)
        return Trimmer(
            log=JetStreamLog(client),
            archive=Archive(Store(self.url)),
            store=NatsObjects(client),
            bus=NatsBus(client),
            clock=SystemClock(),
            policy=policy,
        )

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not done():
                await asyncio.sleep(0.02)

    async def end(self) -> None:
        self.stop.set()
        await asyncio.gather(*self.running, return_exceptions=True)


@pytest.fixture
async def trimming(tmp_path: Path) -> AsyncIterator[Trimming]:
    servers = start_servers(tmp_path, log_bytes=LOG_BYTES)
    world = World(servers)
    made = Trimming(world, tmp_path)
    try:
        await made.begin()
        yield made
    finally:
        await made.end()
        for client in world.clients.values():
            await client.close()
        servers.stop()


async def folded(pages: AsyncIterator[list[Entry]], upto: int) -> Cluster:
    cluster = Cluster()
    async for page in pages:
        for entry in page:
            fold.apply_entry(cluster, entry.seq, entry.subject, f.decode(entry.data))
        if cluster.seq >= upto:
            break
    return cluster


async def test_trimmed_commits_are_in_the_snapshot_and_in_the_archive(trimming: Trimming) -> None:
    trimmer = await trimming.trimmer()
    before = await folded((await trimming.world.log("gateway-a")).read(0), trimming.last)
    assert await trimmer.round()
    extent = await trimmer.log.extent()
    assert (trimmer.trimmed, extent.last) == (trimming.last - KEPT, trimming.last)
    assert extent.commits <= KEPT + 2
    gateway = await trimming.world.client("gateway-a")
    bus, log = NatsBus(gateway), JetStreamLog(gateway)
    assert snapshot.encode(
        await folded(whole(log, bus, 0, trimming.last), trimming.last)
    ) == snapshot.encode(before)
    assert (await snapshot_store.newest(NatsObjects(gateway))).seq == trimmer.trimmed
    assert [page[0].seq async for page in archived(bus, 4, 5)] == [5]
    assert len(await job_seqs(bus, "job-1")) == 2
    assert await job_seqs(bus, "unknown") == []
    base = await snapshot_store.load(NatsObjects(gateway), BASE_OBJECT)
    assert base is not None
    head = await NatsObjects(gateway).get(BASE_HEAD_OBJECT)
    assert head is not None and snapshot.seq_of(head) == base.seq
    report = await verify(Store(trimming.url), log.read(base.seq))
    assert (report.findings, report.streamed) == ((), KEPT)


async def test_services_go_on_and_start_again_over_a_trimmed_log(trimming: Trimming) -> None:
    trimmer = await trimming.trimmer()
    assert await trimmer.round()
    await trimming.submit(COMMITS + 1, 5)
    last = await trimming.settle(trimming.quota)
    await trimming.until(lambda: trimming.audit.archived == last)
    await trimming.end()
    late = await trimming.quota_process()
    trimming.stop.clear()
    trimming.running = [asyncio.create_task(late.run(trimming.stop))]
    await trimming.submit(COMMITS + 6, 1)
    assert await trimming.settle(late) > last
    assert late.state.cluster.jobs[JobId(f"job-{COMMITS + 6}")].admitted
    assert late.state.cluster.jobs[JobId("job-1")].admitted


async def test_it_waits_for_a_service_that_does_not_answer(trimming: Trimming) -> None:
    trimmer = await trimming.trimmer()
    await (await trimming.world.client("quota")).close()
    assert not await trimmer.round()
    assert (await trimmer.log.extent()).commits == trimming.last


async def test_it_stays_quiet_when_little_would_go(trimming: Trimming) -> None:
    trimmer = await trimming.trimmer(trimming.last)
    assert not await trimmer.round()
    assert await trimmer.store.get(BASE_OBJECT) is None


async def test_a_lost_base_stops_readers_and_is_folded_again_from_the_archive(
    trimming: Trimming,
) -> None:
    trimmer = await trimming.trimmer()
    assert await trimmer.round()
    await (
        (await trimming.world.client("gateway-a"))
        .jetstream()
        .object_store(subjects.SNAPSHOT_BUCKET)
    )
    await NatsObjects(await trimming.world.client("gateway-a")).delete(BASE_OBJECT)
    late = await trimming.quota_process()
    with pytest.raises(Trimmed, match="begins from a snapshot"):
        await late.run(asyncio.Event())
    assert not await trimmer.round()
    base = await snapshot_store.load(trimmer.store, BASE_OBJECT)
    assert base is not None
    assert base.seq == trimming.last


async def test_a_former_leader_that_goes_on_does_not_put_an_older_base_in_place_of_the_newer(
    trimming: Trimming,
) -> None:
    former, leader = await trimming.trimmer(3 * KEPT), await trimming.trimmer()

    async def prove() -> None:
        """Play the pause: the other audit trims further before the first write of this one."""
        if not leader.trimmed:
            assert await leader.round()
        raise Fenced("another audit leads")

    former.prove_term = prove
    with pytest.raises(Fenced):
        await former.run(0.1)
    base = await snapshot_store.load(leader.store, BASE_OBJECT)
    assert base is not None and base.seq == leader.trimmed


async def test_a_base_that_ends_before_the_log_begins_is_folded_again_from_the_archive(
    trimming: Trimming,
) -> None:
    former, leader = await trimming.trimmer(3 * KEPT), await trimming.trimmer()
    assert await former.round()
    older = await former.store.get(BASE_OBJECT)
    assert older is not None and await leader.round()
    await leader.store.put(BASE_OBJECT, older)
    with pytest.raises(Trimmed):
        await (await trimming.quota_process()).run(asyncio.Event())
    assert not await leader.round()
    base = await snapshot_store.load(leader.store, BASE_OBJECT)
    assert base is not None and base.seq == trimming.last


async def test_an_empty_archive_of_a_trimmed_log_begins_in_the_middle_only_when_it_is_told_to(
    trimming: Trimming, tmp_path: Path
) -> None:
    trimmer = await trimming.trimmer()
    assert await trimmer.round()
    begin = trimmer.trimmed + 1
    fresh = Store(f"sqlite:///{tmp_path / 'fresh.db'}")
    with pytest.raises(Corrupt, match=f"commit 1 is not archived.*MUSTER_AUDIT_BEGIN={begin}"):
        await (await trimming.audit_process(fresh)).run(asyncio.Event())
    adopted, stop = await trimming.audit_process(fresh, begin), asyncio.Event()
    running = asyncio.create_task(adopted.run(stop))
    await trimming.until(lambda: adopted.archived == trimming.last)
    stop.set()
    await running
    findings = (await verify(fresh)).findings
    assert [(each.index, each.wrong) for each in findings] == [(0, "missing")]
    assert f"{begin - 2} after it" in findings[0].detail


async def test_without_an_archive_that_answers_history_ends_in_one_clear_line(
    trimming: Trimming,
) -> None:
    await (await trimming.trimmer()).round()
    await trimming.end()
    await (await trimming.world.client("audit")).close()
    gateway = await trimming.world.client("gateway-a")
    with pytest.raises(
        Unavailable, match="commit 1 was trimmed from the log, and the archive does not answer"
    ):
        async with aclosing(whole(JetStreamLog(gateway), NatsBus(gateway), 0, 5)) as pages:
            await anext(pages)


async def test_an_unsigned_base_from_before_the_upgrade_is_made_again_from_the_archive(
    trimming: Trimming,
) -> None:
    """A trimmed log of an earlier version: no service takes its base, and the trimmer signs one
    that it folded itself.
    """
    trimmer = await trimming.trimmer()
    assert await trimmer.round()
    keys = trimming.world.servers.keys
    told = Settings(trimmer_key_file=str(identity.public_file(keys, "trimmer")))
    gateway = signed_snapshots.of(
        told,
        NatsObjects(await trimming.world.client("gateway-a")),
        trimming.world.servers.seed("gateway-a"),
    )
    assert (await snapshot_store.newest(gateway)).seq == 0
    trimmer.store = signed_snapshots.of(told, trimmer.store, trimming.world.servers.seed("trimmer"))
    assert not await trimmer.round()
    assert (await snapshot_store.newest(gateway)).seq >= trimmer.trimmed
