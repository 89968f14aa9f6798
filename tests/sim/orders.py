"""Queue order in one run: queues of all policies, dependencies, holds, changes and requeues by
users.

A pure function of the seed with its own dice, so that runs without them stay as they were. Every
hold is released soon, so that every job can end.
"""

import random
from typing import Any, Final

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.model import JobId, NodeId, TenantId
from libs.common.state.ordering import AFTER, DEFAULT_QUEUE, POLICIES
from tests.sim.clock import EPOCH_NS

PART_OF_SEEDS: Final = 0.5
NIGHT: Final = "night"
COURSE: Final = "course"
SECOND_NS: Final = 1_000_000_000
LIMITED: Final = 0.6

TimedFacts = list[tuple[float, tuple[f.AnyFact, ...]]]


def with_orders(seed: int, acts: TimedFacts, storm_s: float) -> TimedFacts:
    """Return the same acts; half of the seeds add queues and conditions on when jobs may begin."""
    dice = random.Random(f"orders {seed}")
    if dice.random() >= PART_OF_SEEDS:
        return acts
    ends = random.Random(f"ends {seed}")
    windows = random.Random(f"windows {seed}")
    found: TimedFacts = [(0.0, tuple(_queue(dice, ends, name) for name in (DEFAULT_QUEUE, NIGHT)))]
    found += _reservation(windows, storm_s)
    for at_s, facts in acts:
        found.append(
            (
                at_s,
                tuple(
                    _ordered(dice, ends, fact) if isinstance(fact, f.JobSubmitted) else fact
                    for fact in facts
                ),
            )
        )
        for fact in found[-1][1]:
            if isinstance(fact, f.JobSubmitted):
                found += _changes(dice, fact, at_s, storm_s)
    return found


def _queue(dice: random.Random, ends: random.Random, name: str) -> f.QueueSet:
    policy, weight, ageing_s = (
        dice.choice((*POLICIES, "fifo", "fair_share")),
        dice.choice((50, 100)),
        dice.choice((0, 2)),
    )
    return f.QueueSet(
        queue=name,
        policy=policy,
        weight=weight,
        ageing_s=ageing_s,
        backfill=ends.choice((None, None, None, True, False)),
    )


def _reservation(dice: random.Random, storm_s: float) -> TimedFacts:
    """Reserve nodes for some tenants, or for none, and clear the reservation before the storm is
    over.
    """
    start_ns = (
        EPOCH_NS + int(dice.choice((-3_600, 0, 10, 30, 3_600)) + dice.uniform(0, 5)) * SECOND_NS
    )
    end_ns = start_ns + dice.choice((5, 60, 7_200)) * SECOND_NS
    nodes = tuple(
        NodeId(name) for name in dice.sample(("n0", "n1", "n2", "n3"), dice.choice((1, 1, 2)))
    )
    tenants = tuple(TenantId(name) for name in dice.choice(((), ("red",), ("red", "default"))))
    course = f.ReservationSet(
        reservation=COURSE, nodes=nodes, start_ns=start_ns, end_ns=end_ns, tenants=tenants, user="u"
    )
    set_s = dice.uniform(0.0, 4.0)
    return [
        (set_s, (course,)),
        (
            dice.uniform(set_s + 1.0, max(set_s + 2.0, storm_s)),
            (f.ReservationCleared(reservation=COURSE, user="u"),),
        ),
    ]


def _ordered(dice: random.Random, ends: random.Random, fact: f.JobSubmitted) -> f.JobSubmitted:
    words: dict[str, Any] = {
        "reservation": ends.choice(("", "", "", COURSE)),
        "queue": dice.choice(("", "", NIGHT)),
        "estimate_s": dice.choice((0, 1, 5, 30)),
    }
    if dice.random() < 0.2:
        words["after"] = ((dice.choice(AFTER), JobId(f"job-{dice.randrange(20)}")),)
    if dice.random() < 0.2:
        words |= {"singleton": True, "name": dice.choice("xy")}
    if dice.random() < 0.3:
        words["deadline_ns"] = dice.randrange(1, 60) * SECOND_NS
    words["hold"] = dice.random() < 0.1
    if (
        ends.random() < LIMITED
    ):  # some are short enough to begin before a job that waits for a long one
        words |= {
            "time_limit_s": ends.choice((1, 2, 10, 40)),
            "start_s": ends.choice((4, 10)),
            "grace_s": ends.choice((0, 1)),
        }
    return replace(fact, spec=replace(fact.spec, **words))


def _changes(dice: random.Random, fact: f.JobSubmitted, at_s: float, storm_s: float) -> TimedFacts:
    found: TimedFacts = []
    held_s = at_s
    if dice.random() < 0.1:
        held_s += dice.uniform(0.0, 5.0)
        found.append((held_s, (f.JobUpdated(job_id=fact.job_id, held=True, user="u"),)))
    if fact.spec.hold or found:
        released_s = max(held_s + 1.0, min(storm_s, at_s + dice.uniform(5.0, 12.0)))
        found.append((released_s, (f.JobUpdated(job_id=fact.job_id, held=False, user="u"),)))
    if dice.random() < 0.2:
        found.append(
            (
                at_s + dice.uniform(0.0, 8.0),
                (f.JobUpdated(job_id=fact.job_id, priority=dice.choice((0, 100)), user="u"),),
            )
        )
    if dice.random() < 0.15:
        found.append(
            (
                at_s + dice.uniform(0.5, 10.0),
                (f.RequeueRequested(job_id=fact.job_id, attempt=dice.choice((1, 1, 2)), user="u"),),
            )
        )
    return found
