"""Two schedulers and two quotas over a real server: one leads, and the other takes over."""

import asyncio
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.process.clock import SystemClock
from libs.common.transport.writer import Writer
from services.audit.store.engine import BUSY_MS
from services.audit.store.store import Store
from tests.integration.leading_world import Leaders, leaders

# Each kill under load: time for the killed process to come back and follow again.
KILLS = 3
PAUSED_S = 1.5


async def two(world: Leaders) -> str:
    """Start two processes; return the one that leads when the other follows."""
    world.start("a")
    world.start("b")
    leader = await world.leader()
    await world.follows(other(leader))
    return leader


def other(instance: str) -> str:
    return "b" if instance == "a" else "a"


@pytest.mark.parametrize("service", ["scheduler", "quota"])
async def test_two_that_start_at_once_make_one_term(tmp_path: Path, service: str) -> None:
    async with leaders(tmp_path, "scheduler") as log_maker:
        log_maker.start("maker")  # the scheduler creates the log
        await log_maker.leader()
        log_maker.kill("maker")
        world = Leaders(tmp_path, log_maker.server, service, log_maker.bus.client)
        world.living = log_maker.living
        before = len(await world.terms())
        await two(world)
        await asyncio.sleep(1.0)
        assert len(await world.terms()) == before + 1


async def test_each_kill_of_a_leader_under_load_makes_exactly_one_term_more(
    tmp_path: Path,
) -> None:
    async with leaders(tmp_path, "scheduler") as world:
        leader = await two(world)
        loading = asyncio.create_task(load(world))
        for kill in range(KILLS):
            world.kill(leader)
            before = leader
            leader = await world.leader(besides=[before])
            world.said(before).write_text("")
            world.start(before)
            await world.follows(before)
            assert len(await world.terms()) == 2 + kill
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        assert [instance for _, instance in await world.terms()][-1] == leader


@pytest.mark.parametrize("service", ["scheduler", "quota"])
async def test_after_a_restore_terms_are_above_all_before_and_the_other_takes_over(
    tmp_path: Path, service: str
) -> None:
    async with leaders(tmp_path, "scheduler") as log_maker:
        log_maker.start("maker")
        await log_maker.leader()
        log_maker.kill("maker")
        writer = Writer(log_maker.log, SystemClock(), subjects.SCHEDULER, lambda: 0)
        await writer.attach()
        writer.epoch = (await log_maker.terms())[-1][0]
        await writer.commit([f.ClusterRestored(life=1, backup="x")])
        world = Leaders(tmp_path, log_maker.server, service, log_maker.bus.client)
        world.living = log_maker.living
        world.start("a")
        assert await world.leader(life=1) == "a"
        world.start("b")
        await world.follows("b")
        world.kill("a")
        assert await world.leader(besides=["a"], life=1) == "b"


async def load(world: Leaders) -> None:
    while True:
        await world.submit(4)
        await asyncio.sleep(0.005)


async def test_a_paused_leader_is_replaced_and_does_no_harm_when_it_goes_on(tmp_path: Path) -> None:
    async with leaders(tmp_path, "scheduler") as world:
        leader = await two(world)
        world.send(leader, signal.SIGSTOP)
        began = time.monotonic()
        assert await world.leader(besides=[leader]) == other(leader)
        assert time.monotonic() - began < PAUSED_S * 4
        await asyncio.sleep(PAUSED_S)
        world.send(leader, signal.SIGCONT)
        code = await asyncio.to_thread(world.living[leader].wait, 20)
        assert code == 1, "it is fenced, and its service manager starts it again"
        terms = await world.terms()
        assert len(terms) == 2
        ours = [seq for seq, fact in await world.facts() if subject_of(fact) == "scheduler"]
        assert max(ours) >= terms[-1][0]


def subject_of(fact: object) -> str:
    return "scheduler" if isinstance(fact, f.SchedulerFact) else "another"


async def test_leader_that_stops_hands_over_and_leaves_no_long_lease(tmp_path: Path) -> None:
    async with leaders(tmp_path, "scheduler") as world:
        leader = await two(world)
        world.send(leader, signal.SIGTERM)
        assert await world.leader(besides=[leader]) == other(leader)
        assert await asyncio.to_thread(world.living[leader].wait, 5) == 0
        assert not any(isinstance(fact, f.LeaseExtended) for _, fact in await world.facts())
        assert len(await world.terms()) == 2


async def test_last_one_that_stops_leaves_a_long_lease(tmp_path: Path) -> None:
    async with leaders(tmp_path, "scheduler") as world:
        world.start("a")
        await world.leader()
        world.send("a", signal.SIGTERM)
        assert await asyncio.to_thread(world.living["a"].wait, 10) == 0
        assert any(isinstance(fact, f.LeaseExtended) for _, fact in await world.facts())


async def test_follower_that_was_paused_itself_begins_no_term(tmp_path: Path) -> None:
    async with leaders(tmp_path, "scheduler") as world:
        leader = await two(world)
        for _ in range(3):
            world.send(other(leader), signal.SIGSTOP)
            await asyncio.sleep(PAUSED_S)
            world.send(other(leader), signal.SIGCONT)
            await asyncio.sleep(0.3)
        assert len(await world.terms()) == 1
        assert await world.leader() == leader


async def test_audits_share_one_archive_and_one_of_them_writes_it(tmp_path: Path) -> None:
    async with leaders(tmp_path, "scheduler") as log_maker:
        log_maker.start("maker")
        await log_maker.leader()
        world = Leaders(tmp_path, log_maker.server, "audit", log_maker.bus.client)
        world.living = log_maker.living
        world.start("a")
        leader = await world.audit_leader()
        world.start("b")
        await world.follows("b")
        await world.submit(4)
        await archived(world)
        for number in range(2):
            if number:
                world.send(leader, signal.SIGSTOP)
            else:
                world.kill(leader)
            before, leader = leader, await world.audit_leader(besides=[leader])
            await world.submit(4)
            await archived(world)
            if number:
                world.send(before, signal.SIGCONT)
                await world.submit(4)
                await asyncio.to_thread(world.living[before].wait, 20)
            else:
                world.said(before).write_text("")
                world.start(before)
                await world.follows(before)
        await archived(world)


async def test_an_audit_that_opens_a_slow_archive_keeps_its_term(tmp_path: Path) -> None:
    async with leaders(tmp_path, "scheduler") as log_maker:
        log_maker.start("maker")
        await log_maker.leader()
        world = Leaders(tmp_path, log_maker.server, "audit", log_maker.bus.client)
        world.living = log_maker.living
        # The migration waits until the database is no longer locked.
        locked = sqlite3.connect(world.folder / "audit.db", isolation_level=None)
        locked.execute("BEGIN EXCLUSIVE")
        world.start("a")
        world.start("b")
        leader = await world.audit_leader()
        await world.follows(other(leader))
        await asyncio.sleep(PAUSED_S)
        assert await world.audit_leader() == leader
        locked.execute("ROLLBACK")
        locked.close()
        await asyncio.to_thread(Store(f"sqlite:///{world.folder}/audit.db").migrate)
        await world.submit(4)
        await archived(world)
        assert await world.audit_leader() == leader
        assert [world.living[each].poll() for each in "ab"] == [None, None]


async def test_an_audit_that_is_told_to_stop_while_it_opens_its_archive_leads_no_longer(
    tmp_path: Path,
) -> None:
    async with leaders(tmp_path, "scheduler") as log_maker:
        log_maker.start("maker")
        await log_maker.leader()
        world = Leaders(tmp_path, log_maker.server, "audit", log_maker.bus.client)
        world.living = log_maker.living
        locked = sqlite3.connect(world.folder / "audit.db", isolation_level=None)
        locked.execute("BEGIN EXCLUSIVE")
        world.start("a")
        world.start("b")
        leader = await world.audit_leader()
        await world.follows(other(leader))
        world.send(leader, signal.SIGTERM)
        async with asyncio.timeout(BUSY_MS / 1_000 / 2):
            await world.audit_leader(besides=[leader])
        locked.close()


async def archived(world: Leaders) -> None:
    """Wait until the archive holds the log, commit by commit."""
    store = Store(f"sqlite:///{world.folder}/audit.db")
    last = (await world.log.bounds())[1]
    async with asyncio.timeout(20):
        while (head := store.head_now()) is None or head.seq < last:
            await asyncio.sleep(0.05)
    assert [record.seq for record in store.between(1, last)] == list(range(1, last + 1))
    store.close()
