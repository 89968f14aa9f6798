"""No verdict without a request in a day of healthy jobs, and every planted one in random evidence.

A healthy job may be silent for long: it compiles, evaluates on one rank, waits for data, uploads in
a thread, or polls. Time is virtual; the rules and the count of silence are the real ones.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.diagnosis import evidence as e
from libs.common.diagnosis.evidence import NodeSeen, ProcessSeen
from libs.common.diagnosis.rules import automatic, diagnose
from services.node_agent.diagnosis.silence import SECOND_NS, Silence
from tests.unit.diagnosis_world import LOADS, LOCKED, SAVES, code, node, process, waits

WORLD, LOCAL, KEY = 32, 8, "job-1.1"
AFTER_S, AGAIN_S, LOOK_S, DAY_S = 600, 60, 15, 24 * 3_600

# Makes one rank of a phase.
Ranked = Callable[[random.Random, int], ProcessSeen]


class Phase(NamedTuple):
    """A phase of a healthy job: its ranks, how long it lasts, and whether it shows progress."""

    make: Ranked
    longest_s: int
    shows_progress: bool


def seen(rank: int, *looks: e.Frame | tuple[e.Frame, ...], **more: object) -> ProcessSeen:
    return process(rank, *looks, world=WORLD, local_world=LOCAL, **more)  # type: ignore[arg-type]


def steps(chance: random.Random, rank: int) -> ProcessSeen:
    """Return a rank in its steps: it computes or waits, at any moment."""
    looks = [chance.choice((waits(), code(line=chance.randrange(9)), LOADS)) for _ in range(3)]
    return seen(rank, *looks, cpu_ms=chance.randrange(300, 1_000))


def only_rank_0(does: Callable[[random.Random], ProcessSeen]) -> Ranked:
    """Return ranks that wait for rank 0."""
    return lambda chance, rank: seen(rank, waits("barrier")) if rank else does(chance)


PHASES = (
    Phase(steps, 3_600, shows_progress=True),
    Phase(steps, 7_200, shows_progress=False),
    Phase(lambda chance, rank: seen(rank, code("compile"), cpu_ms=990), 2_400, False),
    Phase(only_rank_0(lambda _: seen(0, code("evaluate"), cpu_ms=900)), 2_400, False),
    # It evaluates on its device: the stack is the same in all looks, and it uses no CPU.
    Phase(only_rank_0(lambda _: seen(0, code("item"))), 2_400, False),
    Phase(only_rank_0(lambda _: seen(0, SAVES, moved_bytes=1 << 20)), 1_800, True),
    # A thread sends a checkpoint over a socket, which counts as no bytes.
    Phase(only_rank_0(lambda _: seen(0, LOCKED, cpu_ms=40)), 1_800, False),
    # It polls for a file.
    Phase(only_rank_0(lambda _: seen(0, code("poll"), waits_in="hrtimer_nanosleep")), 1_800, False),
    Phase(lambda _, rank: seen(rank, LOADS), 1_800, False),
    # Workers wait for requests, and rank 0 for clients.
    Phase(lambda _, rank: seen(rank, code("recv") if rank else code("accept")), 7_200, False),
)


def evidence(phase: Phase, chance: random.Random, silent_s: int) -> list[NodeSeen]:
    ranks = [phase.make(chance, rank) for rank in range(WORLD)]
    return [
        node(member, *ranks[LOCAL * member : LOCAL * (member + 1)], silent_s=silent_s)
        for member in range(WORLD // LOCAL)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_a_day_of_healthy_work_gives_no_verdict_by_itself(seed: int) -> None:
    chance, silence, now_s, signs, reports = random.Random(seed), Silence(), 0, 0, 0
    phase, until_s = PHASES[0], 0
    while now_s < DAY_S:
        if now_s >= until_s:
            phase = chance.choice(PHASES)
            until_s, signs = now_s + chance.randrange(60, phase.longest_s), signs + 1
        signs += phase.shows_progress
        silence.note(KEY, (signs,), now_s * SECOND_NS)
        if silence.is_due(KEY, now_s * SECOND_NS, AFTER_S):
            reports += 1
            first = evidence(phase, chance, silence.silent_s(KEY, now_s * SECOND_NS))
            second = evidence(phase, chance, silence.silent_s(KEY, (now_s + AGAIN_S) * SECOND_NS))
            assert automatic(first, second, AFTER_S) is None, (phase, now_s)
        now_s += LOOK_S
    assert reports > 10, "a day in which nothing was examined shows nothing"


FAULTS = (
    (lambda rank: seen(rank, LOCKED), e.APART),
    (lambda rank: seen(rank, LOADS), e.APART),
    (lambda rank: seen(rank, code(), waits_in="hrtimer_nanosleep"), e.APART),
    (lambda rank: seen(rank, state="T"), e.STOPPED),
    (lambda rank: seen(rank, waits("barrier", 41)), e.MISMATCH),
    (lambda rank: seen(rank, state="Z"), e.DEAD),
)


@settings(max_examples=200, deadline=None)
@given(rank=st.integers(0, WORLD - 1), fault=st.sampled_from(FAULTS))
def test_a_planted_fault_is_found_at_any_rank(
    rank: int, fault: tuple[Callable[[int], ProcessSeen], str]
) -> None:
    make, kind = fault
    stuck = Phase(lambda _, each: make(each) if each == rank else seen(each, waits()), 0, False)
    verdict = diagnose(evidence(stuck, random.Random(0), 0))
    assert (verdict.kind, verdict.suspects[0].rank) == (kind, rank)
    assert verdict.suspects[0].node_id == f"node-{rank // LOCAL + 1}"
