"""Clients that watch: each is woken by what it wants, and by nothing else."""

import asyncio
from collections.abc import Mapping

import pytest

from libs.common.change import Change
from libs.common.model import JobId, JobSpec, NodeId, TenantId
from libs.common.state.cluster import Job, MemberView
from services.api_gateway.access.fair_turns import FairTurns
from services.api_gateway.problems import Problem
from services.api_gateway.views import waiting
from services.api_gateway.views.interests import SHORTEN_AFTER, Interest, JobFilter
from services.api_gateway.views.waiting import PACE_S, LogFollower, Waiting, Watcher

ALL = Interest(jobs=JobFilter())
PHYSICS = Interest(tenant="physics", jobs=JobFilter())
NODES = Interest(nodes=True)
DEVICES = Interest(devices=True)


class AtOnce(FairTurns):
    """Turns that are given at once."""

    def put(self, tenant: str, event: asyncio.Event, worth: int = 1) -> None:
        event.set()


def job(name: str, tenant: str = "default", *nodes: str) -> Job:
    return Job(
        job_id=JobId(name),
        spec=JobSpec(command=("true",)),
        tenant=TenantId(tenant),
        user="ada",
        seq=1,
        state="queued",
        members={NodeId(node): MemberView(NodeId(node), 1, 0, (), 1) for node in nodes},
    )


JOBS: Mapping[JobId, Job] = {
    each.job_id: each for each in (job("a"), job("b", "physics"), job("c", "default", "n1"))
}


def changed(made: Waiting, seq: int, *jobs: str, nodes: tuple[str, ...] = ()) -> None:
    names = tuple(map(JobId, jobs))
    made.changed(
        seq, dict.fromkeys(names, "queued"), JOBS, Change(names, tuple(map(NodeId, nodes)))
    )


def taken(watcher: Watcher) -> tuple[list[JobId], list[NodeId]] | None:
    """Return the client's changes; None if it was not woken."""
    return watcher.take() if watcher.woken.is_set() else None


async def test_each_client_is_woken_by_what_it_wants() -> None:
    made = Waiting(AtOnce())
    everything, physics, nodes, devices, named, foreign = (
        made.feeds.enter(interest, "")
        for interest in (
            ALL,
            PHYSICS,
            NODES,
            DEVICES,
            Interest(jobs=JobFilter(only=frozenset({JobId("c")}))),
            Interest(tenant="physics", jobs=JobFilter(tenant="default")),
        )
    )
    changed(made, 5, "a", "b", "gone", nodes=("n2",))
    assert taken(everything) == (["a", "b"], [])
    assert taken(physics) == (["b"], [])
    assert taken(nodes) == ([], ["n2"])
    assert taken(devices) == ([], ["n2"])
    assert taken(named) is None and taken(foreign) is None
    changed(made, 6, "c")
    assert taken(named) == (["c"], [])
    assert taken(devices) == ([], ["n1"])
    assert taken(nodes) is None and taken(foreign) is None


async def test_a_client_that_does_not_take_gets_each_change_once_later() -> None:
    made = Waiting(AtOnce())
    slow, quick = made.feeds.enter(ALL, ""), made.feeds.enter(ALL, "")
    for number in range(3):
        changed(made, number, "a")
        changed(made, number, "c")
        assert taken(quick) == (["a", "c"], [])
    assert taken(slow) == (["a", "c"], [])
    assert taken(slow) is None


async def test_clients_that_leave_are_forgotten() -> None:
    made = Waiting(AtOnce())
    watchers = [made.feeds.enter(each, "") for each in (ALL, ALL, PHYSICS, NODES, DEVICES)]
    watchers.append(made.feeds.enter(Interest(jobs=JobFilter(only=frozenset({JobId("a")}))), ""))
    changed(made, 1, "a", "b", nodes=("n1",))
    assert made.feeds.watchers == 6
    for watcher in watchers:
        made.feeds.leave(watcher)
    feeds = made.feeds
    assert not (feeds.feeds or feeds.of_tenant or feeds.of_job or feeds.of_nodes or feeds.watchers)
    assert not feeds.filters
    changed(made, 2, "a", nodes=("n1",))


async def test_no_change_costs_anything_for_clients_that_must_not_see_it() -> None:
    feeds = Waiting(AtOnce()).feeds
    for foreign in (JobFilter(tenant="default"), JobFilter(only=frozenset({JobId("a")}))):
        feeds.enter(Interest(tenant="physics", jobs=foreign), "physics")
    assert not list(feeds._feeds_of(JOBS[JobId("a")]))
    for seen in (JobFilter(), JobFilter(tenant="default"), JobFilter(only=frozenset({JobId("a")}))):
        feeds.enter(Interest(jobs=seen), "operators")
        feeds.enter(Interest(tenant="default", jobs=seen), "default")
    assert len(list(feeds._feeds_of(JOBS[JobId("a")]))) == 6


async def test_the_different_filters_of_a_tenant_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feeds = Waiting(AtOnce()).feeds
    monkeypatch.setattr(waiting, "FILTERS_MAX", 2)
    first, second, third = (
        Interest(tenant="physics", jobs=JobFilter(user=user)) for user in ("ada", "bo", "cy")
    )
    watcher = feeds.enter(first, "physics")
    feeds.enter(second, "physics")
    with pytest.raises(Problem, match="tenant physics have 2 different filters") as caught:
        feeds.check_filters(third, "physics")
    assert caught.value.status == 429
    named = Interest(tenant="physics", jobs=JobFilter(only=frozenset({JobId("a")})))
    for free in (first, named, NODES):
        feeds.check_filters(free, "physics")
    feeds.check_filters(third, "biology")
    feeds.leave(watcher)
    feeds.check_filters(third, "physics")


async def test_a_journal_that_all_have_read_is_shortened() -> None:
    made = Waiting(AtOnce())
    first, second = made.feeds.enter(NODES, ""), made.feeds.enter(NODES, "")
    names = tuple(f"n{number}" for number in range(2 * SHORTEN_AFTER))
    changed(made, 1, nodes=names)
    assert len(first.take()[1]) == len(names)
    changed(made, 2, nodes=("n0",))
    first.take()
    assert second.take()[1] == [NodeId(name) for name in (*names[1:], "n0")]
    changed(made, 3, nodes=tuple(f"m{number}" for number in range(SHORTEN_AFTER + 1)))
    assert len(second.take()[1]) == SHORTEN_AFTER + 1
    assert set(first.feed.journal.nodes) == {f"m{number}" for number in range(SHORTEN_AFTER + 1)}
    assert len(first.take()[1]) == SHORTEN_AFTER + 1


async def test_nodes_that_changed_since_are_known_from_the_beginning_on() -> None:
    made = Waiting(AtOnce())
    made.begin(10)
    changed(made, 11, nodes=("n1",))
    changed(made, 12, "c", nodes=("n2",))
    assert made.nodes_since(9, devices=False) is None
    assert made.nodes_since(10, devices=False) == {"n1": 11, "n2": 12}
    assert made.nodes_since(11, devices=False) == {"n2": 12}
    assert made.nodes_since(11, devices=True) == {"n1": 12, "n2": 12}


async def test_clients_that_wait_are_woken_in_turns_of_their_tenants() -> None:
    turns = FairTurns()
    made = Waiting(turns)
    greedy = [made.feeds.enter(ALL, "greedy") for _ in range(1_000)]
    quiet = made.feeds.enter(ALL, "quiet")
    changed(made, 1, "a")
    turns.give()
    assert quiet.woken.is_set()
    assert sum(watcher.woken.is_set() for watcher in greedy) < 100


async def test_watching_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Waiting(FairTurns())
    monkeypatch.setattr(waiting, "WATCHERS_MAX", 1)
    made.feeds.check_room()
    made.feeds.enter(ALL, "")
    with pytest.raises(Problem, match="1 clients watch"):
        made.feeds.check_room()


async def test_a_follower_of_the_log_is_woken_by_the_next_commit() -> None:
    made = Waiting(AtOnce())
    follower = LogFollower("physics")
    assert not await made.commits(follower, 0.01)
    waits = asyncio.create_task(made.commits(follower, None))
    await asyncio.sleep(0)
    made.folded(1)
    assert await waits and not made.log_followers


async def test_a_client_is_sent_something_only_so_often() -> None:
    made = Waiting(AtOnce())
    first_s = await made.wait_pace(0.0)
    assert await made.wait_pace(first_s) >= first_s + PACE_S
