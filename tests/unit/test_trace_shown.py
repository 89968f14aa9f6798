"""A trace of several nodes as clients see it."""

from msgspec.structs import replace

from libs.common.messages import trace_messages as m
from libs.common.model import JobId, NodeId
from services.api_gateway.traces.shown import about, is_captured, shown

JOB = JobId("j")


def process(rank: int, state: str = m.READY) -> m.TracedProcess:
    return m.TracedProcess(
        rank=rank,
        pid=10 + rank,
        state=state,
        events=5,
        size_bytes=7,
        cores_before=1_000,
        cores_during=1_100,
    )


def state(name: str, *processes: m.TracedProcess, error_ns: int = 0) -> m.TraceState:
    return m.TraceState(
        trace="t", state=name, origin_ns=9, duration_ms=2, error_ns=error_ns, processes=processes
    )


def test_ranks_of_all_nodes_are_in_order_and_costs_are_summed() -> None:
    found = {
        NodeId("n1"): state(m.READY, process(1), error_ns=3),
        NodeId("n0"): state(m.READY, process(0), error_ns=4),
    }
    trace = shown("1-t", JOB, 1, found)
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    assert (trace.state, trace.reference, trace.error_ns) == (m.READY, "n1", 4)
    assert (trace.events, trace.size_bytes, trace.overhead_pct) == (10, 14, 10.0)
    assert about(trace)["ranks"][0]["pid"] == 10


def test_a_trace_is_as_far_as_its_slowest_node() -> None:
    found = {
        NodeId("a"): state(m.READY),
        NodeId("b"): state(m.WRITING),
        NodeId("c"): state(m.FAILED),
    }
    assert shown("1-t", JOB, 1, found).state == m.WRITING
    assert shown("1-t", JOB, 1, {NodeId("c"): state(m.FAILED)}).state == m.FAILED


def test_a_node_without_a_part_says_why() -> None:
    silent = m.TraceState(fault=m.NOTHING, text="no process")
    trace = shown("1-t", JOB, 1, {NodeId("a"): silent})
    assert (trace.state, trace.origin_ns, trace.nodes[0].error) == (m.FAILED, 0, "no process")


def test_the_clocks_are_measured_again_when_all_files_are_there() -> None:
    captured, failed = state(m.CAPTURED), state(m.FAILED)
    assert is_captured({NodeId("a"): captured, NodeId("b"): failed})
    assert not is_captured({NodeId("a"): captured, NodeId("b"): replace(captured, state=m.WRITING)})
    assert not is_captured({NodeId("a"): failed})
