"""The rules of preflights: the links of a gang's placement are measured before the gang starts.

Pure. The placement is reserved meanwhile (`DevicesReserved`), so nothing has started that a suspect
would have to stop. Pairs that were measured in the last 6 hours are not measured again. The
verdict on suspects is that of every test of the fabric (`fabric.py`). After 5 s of this machine's
boot clock the gang starts, whatever is still open. No running job is stopped to give the gang a
suspect: the preflight would only find it again. Tests: tests/unit/test_gang_preflight.py.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Final

from libs.common.facts import (
    AnyFact,
    DevicesReserved,
    FabricRoundOrdered,
    FabricTestBegun,
    JobPlaced,
    PreflightEnded,
)
from libs.common.facts.fabric_facts import ABANDONED, PASSED, PREFLIGHT, SUSPECT, UNFINISHED
from libs.common.life import job_life
from libs.common.model import NodeId
from libs.common.state.cluster import Job
from libs.common.state.fabric import FabricTest, pair_key, pair_of
from services.scheduler.decide import fabric
from services.scheduler.decide.choices import placement, reserve_devices
from services.scheduler.decide.fabric_findings import Findings, findings, reason_of
from services.scheduler.fabric.rounds import Pair, disjoint, ordered
from services.scheduler.fabric.verdict import Verdict
from services.scheduler.placement.choose import Choice
from services.scheduler.state.fabric_rules import MS, PREFLIGHT_FRESH_NS, PREFLIGHT_NS
from services.scheduler.state.state import State

NONE: Final[tuple[AnyFact, ...]] = ()
# Outcomes after which the gang starts on the nodes that were measured.
MAY_START: Final = (PASSED, UNFINISHED)
# A gang whose place became unusable waits this long, so that rules that disagree about a place
# cannot reserve it and give it up for ever at one instant.
GIVEN_UP_WAIT_NS: Final = 1_000 * MS


def measure_links(state: State, now_ns: int) -> Sequence[AnyFact]:
    """Return the next step of a preflight, or of a test of the fabric."""
    for test in state.cluster.fabric.tests.values():
        if test.job_id and (step := _step(state, test, now_ns)):
            return step
    return fabric.measure_fabric(state, now_ns)


def placed_or_measured(
    state: State, job: Job, choice: Choice
) -> tuple[JobPlaced] | tuple[DevicesReserved, FabricTestBegun]:
    """Return the facts that place the job on this choice, or that begin its preflight there."""
    if not job.spec.preflight or not needs_preflight(state, job, choice):
        return (placement(state, job, choice),)
    nodes = tuple(node_id for node_id, _ in choice)
    begun = FabricTestBegun(
        test=f"preflight-{job.job_id}-{job.attempt}-{state.wall_ns}",
        purpose=PREFLIGHT,
        nodes=nodes,
        left_out=_left_out(state, job, nodes),
        job_id=job.job_id,
        attempt=job.attempt,
    )
    return (reserve_devices(job, job.attempt, state, choice), begun)


def needs_preflight(state: State, job: Job, choice: Choice) -> bool:
    """Return whether the job must not start on this choice before a preflight of these nodes."""
    if len(choice) < 2 or not state.fabric_rules.preflights:
        return False
    last = job.preflight
    return (
        last is None
        or last.attempt != job.attempt
        or last.outcome not in MAY_START
        or any(node_id not in last.nodes for node_id, _ in choice)
    )


def is_under_way(state: State, job: Job) -> bool:
    """Return whether the job waits for its preflight to end."""
    return state.fabric_rules.preflights and _test_of(state, job) is not None


def _test_of(state: State, job: Job) -> FabricTest | None:
    """Return the job's preflight, if one is under way."""
    if not job.spec.preflight:
        return None
    tests = state.cluster.fabric.tests.values()
    return next((test for test in tests if test.job_id == job.job_id), None)


def given_up(state: State, job: Job) -> Sequence[DevicesReserved | PreflightEnded]:
    """Return the facts that give up the job's reservation, and a preflight on it."""
    gives_up, test = DevicesReserved(job_id=job.job_id, attempt=job.attempt), _test_of(state, job)
    if test is None:
        return (gives_up,)
    not_before_ns = state.wall_ns + GIVEN_UP_WAIT_NS
    why = "its placement became unusable"
    ended = _ended(state, test, ABANDONED, why, not_before_ns=not_before_ns)
    return (gives_up, *ended)


def suspects_for(state: State, job: Job) -> int:
    """Return the nodes, as bits, for which no running job is stopped in favour of this one.

    They are the suspects of the fabric and of the gang's own preflights, until a later test of the
    fabric finds nothing wrong with them.
    """
    if not job.spec.preflight:
        return 0
    index, fabric_view = state.capacity.index, state.cluster.fabric
    own = job.preflight.suspects if job.preflight is not None else {}
    found = [node_id for node_id, view in fabric_view.nodes.items() if view.reason]
    found += [node_id for node_id, at_ns in own.items() if not _is_cleared(state, node_id, at_ns)]
    return sum(1 << index[node_id] for node_id in dict.fromkeys(found) if node_id in index)


def _is_cleared(state: State, node_id: NodeId, since_ns: int) -> bool:
    """Return whether a test after this time measured the node and found nothing wrong with it and
    its links.

    A test may end with a verdict on a node whose probes were all left out, from older results.
    """
    known = state.cluster.fabric
    verdict = known.nodes.get(node_id)
    if verdict is None or verdict.at_ns <= since_ns:
        return False
    results = [known.pairs.get(pair_key(node_id, other)) for other in known.nodes]
    if not any(pair is not None and pair.at_ns > since_ns for pair in results):
        return False
    return not any(node_id in pair_of(key) for key in known.links)


def _left_out(state: State, job: Job, nodes: Sequence[NodeId]) -> tuple[str, ...]:
    reasons = {node_id: fabric.why_not(state.cluster, node_id, job.job_id) for node_id in nodes}
    return tuple(f"{node_id}: {why}" for node_id, why in reasons.items() if why)


def _step(state: State, test: FabricTest, now_ns: int) -> Sequence[AnyFact]:
    """Return the next step of a preflight: order a round, close it, or end."""
    job = state.cluster.jobs.get(test.job_id)
    if job is None or not _has_its_place(job, test):
        return _ended(state, test, ABANDONED, "the gang gave up its placement meanwhile")
    waited_ns = state.round_clock.since(f"{test.test} whole", 1, now_ns)
    if waited_ns > PREFLIGHT_NS:
        return _over(state, test, job)
    if test.pairs:
        return fabric.closed_round(state, test, now_ns)
    more = _next_round(state, test, job)
    if more is None:
        return NONE
    return more or _judged(state, test, job)


def _over(state: State, test: FabricTest, job: Job) -> Sequence[AnyFact]:
    """End a preflight whose time is over.

    If every pair was measured, and only confirmations are left, slow nodes count as they are.
    """
    if not _stale_pairs(state, test) and findings(state, test, is_over=True).nodes:
        return _judged(state, test, job, is_over=True)
    words = f"{PREFLIGHT_NS // 1_000_000_000} s were over"
    return _ended(state, test, UNFINISHED, words)


def _has_its_place(job: Job, test: FabricTest) -> bool:
    reserved = tuple(member.node_id for member in job.preemption.reserved)
    return (
        job.state == job_life.QUEUED
        and job.attempt == test.attempt
        and job.cancel is None
        and reserved == test.nodes
    )


def _next_round(state: State, test: FabricTest, job: Job) -> Sequence[FabricRoundOrdered] | None:
    """Order the next round: of pairs without a fresh result, then of confirmations.

    None: a node is still measured for another test.
    """
    busy = [
        node_id
        for node_id in test.nodes
        if node_id in test.refused or fabric.why_not(state.cluster, node_id, job.job_id)
    ]
    elsewhere = [
        node_id
        for other in state.cluster.fabric.tests.values()
        for pair in other.pairs
        for node_id in pair
    ]
    if test.stage == 0:
        left = [pair for pair in _stale_pairs(state, test) if not any(n in busy for n in pair)]
        pairs = disjoint(left, elsewhere)
        if pairs:
            return (fabric.order_round(test, pairs, stage=0, planned=0, targets=()),)
        if left:
            return None
    if any(node_id in elsewhere for node_id in test.nodes):
        return None
    return fabric.confirmation(state, test, busy, planned=0)


def _stale_pairs(state: State, test: FabricTest) -> list[Pair]:
    """Return the pairs that have no fresh result, and that this preflight has not tried yet."""
    since_ns, known = state.wall_ns - PREFLIGHT_FRESH_NS, state.cluster.fabric.pairs
    found = []
    for first, second in combinations(test.nodes, 2):
        view = known.get(pair_key(first, second))
        is_fresh = view is not None and not view.error and view.at_ns > since_ns
        if not is_fresh and pair_key(first, second) not in test.confirmed:
            found.append(ordered(first, second))
    return found


def _judged(state: State, test: FabricTest, job: Job, is_over: bool = False) -> Sequence[AnyFact]:
    """End a preflight that has measured all that it could."""
    found = findings(state, test, is_over)
    excluded = dict.fromkeys([*found.nodes, *found.failing])
    for pair in [*found.links, *map(pair_of, found.cut)]:
        if not any(node_id in excluded for node_id in pair):
            excluded[_worse(found.verdict, pair)] = None
    if excluded:
        return _ended(state, test, SUSPECT, _evidence(state, found), tuple(excluded))
    left_out = [*_left_out(state, job, test.nodes), *_refusals(test)]
    outcome = UNFINISHED if left_out else PASSED
    return _ended(state, test, outcome, "; ".join(left_out[: fabric.NAMED_MAX]))


def _refusals(test: FabricTest) -> list[str]:
    return [f"{node_id} took no probe: {why}" for node_id, why in test.refused.items()]


def _worse(verdict: Verdict, pair: Pair) -> NodeId:
    """Return the node of a suspect link that the gang avoids: the one that can do less."""
    return min(pair, key=lambda node_id: (verdict.capacities.get(node_id, 0), node_id))


def _evidence(state: State, found: Findings) -> str:
    words = [
        *(f"{each}: {reason_of(state, found.verdict, each)}" for each in found.nodes),
        *(f"{node_id}: {why}" for node_id, why in found.failing.items()),
        *(
            f"the link {first} - {second} carries {found.verdict.links[first, second] / 10:.0f} % "
            "of others"
            for first, second in found.links
        ),
        *(f"the link {' - '.join(pair_of(key))} fails" for key in found.cut),
    ]
    return "; ".join(words[: fabric.NAMED_MAX])


def _ended(
    state: State,
    test: FabricTest,
    outcome: str,
    detail: str,
    excluded: tuple[NodeId, ...] = (),
    not_before_ns: int = 0,
) -> tuple[PreflightEnded]:
    state.round_clock.forget(test.test)
    state.round_clock.forget(f"{test.test} whole")
    ended = PreflightEnded(
        test=test.test,
        job_id=test.job_id,
        attempt=test.attempt,
        outcome=outcome,
        detail=detail,
        measured=test.measured,
        excluded=excluded,
        excluded_until_ns=state.wall_ns + state.fabric_rules.exclude_ns if excluded else 0,
        at_ns=state.wall_ns,
        not_before_ns=not_before_ns,
    )
    return (ended,)
