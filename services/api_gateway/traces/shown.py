"""A trace as clients see it: all nodes and ranks, their clocks, and what tracing cost. Pure.

Tests: tests/unit/test_trace_shown.py.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from libs.common.messages.trace_messages import (
    ALIGNING,
    CAPTURED,
    FAILED,
    READY,
    TRACING,
    WAITING,
    WRITING,
    TracedProcess,
    TraceState,
)
from libs.common.model import JobId, NodeId
from libs.common.traces.chrome_events import LEAD_IN_NS

# The states of a trace in their order; a trace is as far as its slowest node.
ORDER: Final = (WAITING, TRACING, WRITING, CAPTURED, ALIGNING)


class NodeTraced(msgspec.Struct, frozen=True):
    """One node's part of a trace.

    `shift_ns` is what was added to its clock, `error_ns` the largest error of that. `error` says
    why the node has no part.
    """

    node_id: str
    state: str
    shift_ns: int = 0
    error_ns: int = 0
    error: str = ""


class RankTraced(msgspec.Struct, frozen=True, kw_only=True):
    """One process's part of a trace; see `TracedProcess` for its costs."""

    rank: int
    node_id: str
    pid: int
    state: str
    tracer: str
    command: str
    events: int
    dropped: int
    raw_bytes: int
    size_bytes: int
    cores_before: float
    cores_during: float
    tracer_ms: int
    write_ms: int
    error: str


class TraceShown(msgspec.Struct, frozen=True, kw_only=True):
    """A trace of a job.

    `state` is waiting, tracing, writing, captured, aligning, ready or failed. `reference` is the
    node whose clock all times follow, and `error_ns` the largest error between two ranks.
    `overhead_pct` is the additional processor time of the traced processes while they were traced.
    """

    id: str
    job_id: JobId
    attempt: int
    state: str
    origin_ns: int
    duration_ms: int
    reference: str
    error_ns: int
    events: int
    size_bytes: int
    overhead_pct: float
    nodes: tuple[NodeTraced, ...]
    ranks: tuple[RankTraced, ...]


def shown(name: str, job_id: JobId, attempt: int, found: Mapping[NodeId, TraceState]) -> TraceShown:
    """Return the trace from the states of its nodes, the first node first."""
    ranks = sorted(
        (_rank(node, process) for node, state in found.items() for process in state.processes),
        key=lambda rank: (rank.rank, rank.node_id, rank.pid),
    )
    taking = [state for state in found.values() if not state.fault]
    first = taking[0] if taking else TraceState()
    return TraceShown(
        id=name,
        job_id=job_id,
        attempt=attempt,
        state=_state(found),
        origin_ns=first.origin_ns,
        duration_ms=first.duration_ms,
        reference=next(iter(found), ""),
        error_ns=max((state.error_ns for state in taking), default=0),
        events=sum(rank.events for rank in ranks),
        size_bytes=sum(rank.size_bytes for rank in ranks),
        overhead_pct=_overhead(ranks),
        nodes=tuple(
            NodeTraced(
                node_id=node,
                state=state.state,
                shift_ns=state.shift_ns,
                error_ns=state.error_ns,
                error=state.text,
            )
            for node, state in found.items()
        ),
        ranks=tuple(ranks),
    )


def about(trace: TraceShown) -> dict[str, Any]:
    """Return what the merged file says about itself."""
    return {
        "job": trace.job_id,
        "attempt": trace.attempt,
        "trace": trace.id,
        "start_ns": trace.origin_ns,
        "zero_ns": trace.origin_ns - LEAD_IN_NS,
        "reference_clock": trace.reference,
        "clock_error_ns": trace.error_ns,
        "overhead_pct": trace.overhead_pct,
        "nodes": [msgspec.to_builtins(node) for node in trace.nodes],
        "ranks": [msgspec.to_builtins(rank) for rank in trace.ranks],
    }


def is_captured(found: Mapping[NodeId, TraceState]) -> bool:
    """Return whether all nodes have their files, and some wait for the second measurement."""
    states = [state.state for state in found.values()]
    return CAPTURED in states and not {WAITING, TRACING, WRITING}.intersection(states)


def _state(found: Mapping[NodeId, TraceState]) -> str:
    states = {state.state for state in found.values()}
    going = next((state for state in ORDER if state in states), "")
    return going or (READY if READY in states else FAILED)


def _rank(node_id: NodeId, process: TracedProcess) -> RankTraced:
    return RankTraced(
        rank=process.rank,
        node_id=node_id,
        pid=process.pid,
        state=process.state,
        tracer=process.tracer,
        command=process.command,
        events=process.events,
        dropped=process.dropped,
        raw_bytes=process.raw_bytes,
        size_bytes=process.size_bytes,
        cores_before=process.cores_before / 1_000,
        cores_during=process.cores_during / 1_000,
        tracer_ms=process.tracer_ms,
        write_ms=process.write_ms,
        error=process.error,
    )


def _overhead(ranks: list[RankTraced]) -> float:
    """Return the additional processor time of the processes while they were traced, in per cent."""
    done = [rank for rank in ranks if rank.state == READY]
    before, during = (sum(rank.cores_before for rank in done), sum(r.cores_during for r in done))
    return round(100 * (during - before) / before, 1) if before > 0 else 0.0
