"""Facts of different writers without a causal link commute under `apply`: what lets the scheduler
and quota fold their own facts ahead of the log.

What is meant by "without a causal link": both could be recorded in the same state, by writers that
have not seen the other's (`facts_of_all_kinds.moves`). Each pair of kinds, one of a writer that
works ahead and one of another writer, is folded both ways round in states along random histories.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from random import Random
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common import fold, subjects
from libs.common.facts import AnyFact, kind_of
from libs.common.model import WHOLE_GPU, JobId, job_of
from libs.common.state.cluster import Cluster
from libs.common.subjects import WRITER_OF
from tests.history import History, copy, stamp_of, subject_of
from tests.property.facts_of_all_kinds import moves
from tests.property.invalid_facts import wild, wild_placement

# The writers whose own facts are folded before the log has them.
AHEAD: Final = (subjects.SCHEDULER_KIND, subjects.QUOTA_KIND)
# The facts that a cluster counts: one that was overtaken is counted as ignored, and changes nothing
# else.
COUNTERS: Final = ("facts", "ignored")
# Of a job, shown to people only, with why the two ways round may differ.
SHOWN: Final = {
    "started_ns": "a start that crossed the loss of its node is not noted once the member is lost",
}
# Of an ended job, shown to people only: a wish to end it that came after its end is not noted.
SHOWN_OF_ENDED: Final = ("cancel",)
SEEDS: Final = st.integers(0, 1 << 32)
STEPS: Final = 40
PAIRS_A_STEP: Final = 4
MEETING_PART: Final = 0.8
# What ends a job early comes seldom in a walk, so that most jobs get somewhere; so does what moves
# none. What moves one along comes often.
SELDOM: Final = {
    "job.rejected": 0.1,
    "cancel.requested": 0.3,
    "node.lost": 0.5,
    "job.refused": 0.3,
    "node.declared_dead": 0.2,
    "node.removal_requested": 0.3,
    "node.removed": 0.05,
    "node.revoked": 0.05,
    **dict.fromkeys(("cluster.restored", "restore.settled"), 0.05),
    **dict.fromkeys(
        (
            "node.invited",
            "node.joined",
            "key.created",
            "key.rotated",
            "key.revoked",
            "access.recorded",
            "model.alias_set",
            "model.share_set",
            "model.adapter_set",
            "model.used",
            "secret.set",
            "secret.removed",
            "notification.set",
            "notification.removed",
            "budget.exhausted",
            "lease.profile_set",
            "lease.profile_settled",
            "node.held_back",
            "node.hold_ended",
            "node.hold_cleared",
            "plugin.disabled",
        ),
        0.1,
    ),
    **dict.fromkeys(
        ("model.deployed", "model.scaled", "model.undeployed", "tenant.set", "job.updated"), 0.3
    ),
    **dict.fromkeys(
        (
            "queue.set",
            "requeue.requested",
            "gpu.service_set",
            "gpu.error_seen",
            "gpu.control_requested",
        ),
        0.1,
    ),
    **dict.fromkeys(
        (
            "fabric.test_requested",
            "fabric.round_closed",
            "node.drained",
            "node.drain_cleared",
        ),
        0.1,
    ),
    # A round of probes stays open for long, so that other facts meet it.
    "fabric.round_ordered": 4.0,
    "fabric.probed": 0.05,
    "fabric.test_ended": 0.05,
    "fabric.preflight_ended": 0.03,
    "fabric.test_begun": 2.0,
    "kept.placed": 3.0,
    "kept.observed": 2.0,
    **dict.fromkeys(("node.link_chosen", "node.watchdog_changed"), 0.1),
    **dict.fromkeys(("reservation.set", "reservation.cleared"), 0.02),
    **dict.fromkeys(("price.set", "idle.policy_set"), 0.02),
    "job.diagnosed": 0.1,
    **dict.fromkeys(("job.idle_seen", "job.idle_warned"), 0.2),
    **dict.fromkeys(
        ("job.admitted", "job.queued", "job.placed", "job.finished", "job.released"), 3.0
    ),
    **dict.fromkeys(("lock.requested", "lock.freed"), 0.3),
    **dict.fromkeys(("lock.renew_requested", "lock.release_requested", "lock.renewed"), 0.1),
    **dict.fromkeys(("lease.extended", "cluster.configured", "term.began", "state.hashed"), 0.3),
}
# The walks of the test that every pair is met are the same in every run, and end when that is so.
WALKS: Final = 2_000
# How often a pair is tried at most.
MEETINGS: Final = 3

WRITERS: Final = {str(kind.__struct_config__.tag): writer for kind, writer in WRITER_OF.items()}

Pair = tuple[AnyFact, AnyFact]
Kinds = tuple[str, str]


def walk(chance: Random, steps: int) -> Iterator[Cluster]:
    """A random valid history; each of its states, the same object that goes on changing."""
    history = History()
    for _ in range(steps):
        history.say(valid(history.cluster, chance))
        yield history.cluster


def valid(cluster: Cluster, chance: Random) -> AnyFact:
    """Return a random fact that a correct writer could append now.

    It chooses the kind first and then the fact, because some kinds have many more facts than
    others.
    """
    by_kind = kinds_of(moves(cluster, chance))
    kind = chance.choices(list(by_kind), [SELDOM.get(each, 1.0) for each in by_kind])[0]
    return chance.choice(by_kind[kind])


def kinds_of(facts: Iterable[AnyFact]) -> dict[str, list[AnyFact]]:
    by_kind: dict[str, list[AnyFact]] = {}
    for fact in facts:
        by_kind.setdefault(kind_of(fact), []).append(fact)
    return by_kind


def pairs(cluster: Cluster, chance: Random) -> list[Pair]:
    """Facts of a writer that works ahead, each with one of another writer, that could be recorded
    now.
    """
    found = moves(cluster, chance)
    own = [fact for fact in found if WRITER_OF[type(fact)] in AHEAD]
    return [
        (fact, other)
        for fact in own
        for other in found
        if WRITER_OF[type(fact)] != WRITER_OF[type(other)]
    ]


def meeting(cluster: Cluster, possible: list[Pair]) -> list[Pair]:
    """Pairs that meet on one job or node: others can hardly disturb each other."""
    names = {id(fact): frozenset(touched(cluster, fact)) for pair in possible for fact in pair}
    return [pair for pair in possible if names[id(pair[0])] & names[id(pair[1])]]


def touched(cluster: Cluster, fact: AnyFact) -> list[str]:
    """The job that a fact names, the nodes of that job, the node that it names."""
    job = cluster.jobs.get(getattr(fact, "job_id", JobId("")))
    names = [
        getattr(fact, "job_id", ""),
        getattr(fact, "node_id", ""),
        *(job.members if job is not None else ()),
    ]
    return [
        str(name)
        for name in (*names, *(member.node_id for member in getattr(fact, "members", ())))
        if name
    ]


def after(cluster: Cluster, *facts: tuple[AnyFact, int]) -> dict[str, Any]:
    """Return the state that people and services see after these facts.

    Each fact carries a stamp made from its number.
    """
    state = copy(cluster)
    for fact, number in facts:
        fold.apply(state, fact, stamp_of(subject_of(fact), cluster.seq + number, cluster.epoch))
    return seen(state)


def seen(cluster: Cluster) -> dict[str, Any]:
    """Plain values; dictionaries in their order too, but for `ended`, which says only which job is
    forgotten first, and for the jobs: a replica stands among them before or after what was
    submitted meanwhile, and the queue goes by their `seq`.
    """
    picture: dict[str, Any] = msgspec.to_builtins(cluster)
    for name in COUNTERS:
        del picture[name]
    for job in picture["jobs"].values():
        for name in (*SHOWN, *(SHOWN_OF_ENDED if job["job_id"] in picture["ended"] else ())):
            del job[name]
    return picture


def difference(one: Any, other: Any, path: str = "") -> list[str]:
    if one == other:
        return []
    if isinstance(one, dict) and isinstance(other, dict):
        names = list(dict.fromkeys([*one, *other]))
        return [
            line
            for name in names
            for line in difference(one.get(name), other.get(name), f"{path}.{name}")
        ]
    return [f"{path}: {one!r} / {other!r}"]


def commute(cluster: Cluster, pair: Pair) -> list[str]:
    """Where the two ways round differ, ordered dictionaries included."""
    first, second = (pair[0], 1), (pair[1], 2)
    one, other = after(cluster, first, second), after(cluster, second, first)
    found = difference(one, other)
    if not found and _ordered(one) != _ordered(other):
        found = ["the order of a dictionary"]
    return [f"{pair[0]}\n{pair[1]}\n{line}" for line in found]


def _ordered(picture: dict[str, Any]) -> bytes:
    indexed = {
        name: dict(sorted(picture[name].items())) for name in ("jobs", "dependents", "singletons")
    }
    # A lock that was freed and requested again stands at another place; its queue goes by `seq`.
    for own in picture["locks"].values():
        own["locks"] = dict(sorted(own["locks"].items()))
    return msgspec.json.encode(
        {name: value for name, value in (picture | indexed).items() if name != "ended"}
    )


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_facts_without_a_causal_link_commute(seed: int) -> None:
    chance = Random(seed)
    for cluster in walk(chance, STEPS):
        possible = pairs(cluster, chance)
        close = meeting(cluster, possible) or possible
        for _ in range(PAIRS_A_STEP):
            assert (
                commute(
                    cluster, chance.choice(close if chance.random() < MEETING_PART else possible)
                )
                == []
            )


def test_every_pair_of_kinds_is_met_and_commutes() -> None:
    """The rarest too: the same walks in every run, and of each state the pairs that were met least
    so far.
    """
    met: Counter[Kinds] = Counter(dict.fromkeys(all_pairs(), 0))
    for seed in range(WALKS):
        chance = Random(seed)
        for cluster in walk(chance, STEPS):
            by_kind = kinds_of(moves(cluster, chance))
            for ahead in AHEAD:
                pair = least_met(by_kind, ahead, met)
                if pair is None or met[pair] == MEETINGS:
                    continue
                met[pair] += 1
                first, second = chance.choice(by_kind[pair[0]]), chance.choice(by_kind[pair[1]])
                assert commute(cluster, (first, second)) == []
        if all(met.values()):
            return
    pytest.fail(f"never met: {[pair for pair, times in met.items() if not times]}")


def least_met(by_kind: Iterable[str], ahead: str, met: Counter[Kinds]) -> Kinds | None:
    """A kind of the writer that works ahead, and one of another writer."""
    own, others = (
        [kind for kind in by_kind if WRITERS[kind] == ahead],
        [kind for kind in by_kind if WRITERS[kind] != ahead],
    )
    return min(product(own, others), key=met.__getitem__, default=None)


def all_pairs() -> Iterator[Kinds]:
    for own, other in product(WRITERS, WRITERS):
        if WRITERS[own] in AHEAD and WRITERS[other] != WRITERS[own]:
            yield own, other


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_a_fact_that_was_decided_some_facts_of_others_ago_means_the_same(seed: int) -> None:
    """The scheduler's fact is folded ahead; in the log it comes behind all that others said
    meanwhile.
    """
    chance = Random(seed)
    for cluster in walk(chance, 2 * STEPS):
        own = chance.choice(
            [
                fact
                for fact in moves(cluster, chance)
                if WRITER_OF[type(fact)] == subjects.SCHEDULER_KIND
            ]
        )
        others = meanwhile(copy(cluster), chance, count=3)
        ahead = after(cluster, (own, 9), *((fact, number) for number, fact in enumerate(others, 1)))
        behind = after(
            cluster, *((fact, number) for number, fact in enumerate(others, 1)), (own, 9)
        )
        assert difference(ahead, behind) == [], (own, others)


def meanwhile(cluster: Cluster, chance: Random, count: int) -> list[AnyFact]:
    """Return facts of other writers, which have seen each other but not the scheduler."""
    said = []
    for number in range(1, count + 1):
        possible = [
            fact
            for fact in moves(cluster, chance)
            if WRITER_OF[type(fact)] != subjects.SCHEDULER_KIND
        ]
        said.append(chance.choice(possible))
        fold.apply(
            cluster, said[-1], stamp_of(subject_of(said[-1]), cluster.seq + number, cluster.epoch)
        )
    return said


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_no_fact_of_any_kind_stops_the_fold_or_passes_a_whole_device(seed: int) -> None:
    chance = Random(seed)
    history = History()
    for _ in range(150):
        placement = wild_placement(history.cluster, chance) if chance.random() < 0.5 else None
        fact = placement or (
            wild(chance) if chance.random() < 0.3 else valid(history.cluster, chance)
        )
        history.say(fact, epoch=None if chance.random() < 0.9 else chance.randrange(5))
        assert overbooked(history.cluster) == []


def overbooked(cluster: Cluster) -> list[str]:
    """Where the ledger is not what it must be: a device over its whole, a hold of nothing, a
    tenant's sum that is not the sum.
    """
    wrong = [
        str(view.gpu.uuid)
        for view in cluster.gpus.values()
        if view.held > WHOLE_GPU or any(held <= 0 for held in view.holds.values())
    ]
    holds = [
        (job_of(key), held) for view in cluster.gpus.values() for key, held in view.holds.items()
    ]
    sums = Counter({str(name): 0 for name in cluster.tenants})
    for job_id, held in holds:
        sums[str(cluster.jobs[JobId(job_id)].tenant)] += held
    return wrong + [
        str(name)
        for name, tenant in cluster.tenants.items()
        if tenant.held_share != sums[str(name)]
    ]
