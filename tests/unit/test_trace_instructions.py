"""The instruction of a process, and which ranks a trace includes."""

from msgspec.structs import replace

from libs.common.messages.trace_messages import TraceBegin
from libs.common.model import JobId
from libs.common.traces.clock_offset import ClockPoint
from services.node_agent.tracing.instructions import instruction, is_wanted

BEGIN = TraceBegin(
    trace="00",
    job_id=JobId("j"),
    attempt=1,
    start_ns=1_790_000_000_123_000_000,
    duration_ms=2_000,
    point=ClockPoint(0, 0),
    origin_ns=0,
    place=0,
)


def test_all_processes_begin_at_the_same_moment() -> None:
    lines = instruction(replace(BEGIN, stacks=True), "/x/a.json").splitlines()
    assert "PROFILE_START_TIME=1790000000123" in lines
    assert "ACTIVITIES_DURATION_MSECS=2000" in lines
    assert "ACTIVITIES_LOG_FILE=/x/a.json" in lines
    assert "PROFILE_WITH_STACK=true" in lines
    assert "PROFILE_PROFILE_MEMORY=false" in lines


def test_a_trace_includes_all_ranks_or_those_that_were_named() -> None:
    assert is_wanted(BEGIN, 5)
    named = replace(BEGIN, ranks=(0, 7))
    assert [rank for rank in range(9) if is_wanted(named, rank)] == [0, 7]
