"""The instruction that a process gets, and the time that it needs before it can begin. Pure.

Tests: tests/unit/test_trace_instructions.py.
"""

from typing import Final

from libs.common.messages.trace_messages import TraceBegin
from services.node_agent.tracing.datagrams import written

MS_NS: Final = 1_000_000
WARM_UP_S: Final = 1


def instruction(begin: TraceBegin, path: str) -> str:
    """Return the configuration for one process, which writes its events to `path`.

    libkineto puts the process's number before `.json`. All processes begin at the same moment.
    """
    options: dict[str, object] = {
        "ACTIVITIES_LOG_FILE": path,
        "PROFILE_START_TIME": begin.start_ns // MS_NS,
        "ACTIVITIES_WARMUP_PERIOD_SECS": WARM_UP_S,
        "ACTIVITIES_DURATION_MSECS": begin.duration_ms,
        "PROFILE_REPORT_INPUT_SHAPES": _word(begin.shapes),
        "PROFILE_PROFILE_MEMORY": _word(begin.memory),
        "PROFILE_WITH_STACK": _word(begin.stacks),
        "PROFILE_WITH_FLOPS": _word(False),
        "PROFILE_WITH_MODULES": _word(begin.stacks),
        "REQUEST_TRACE_ID": begin.trace,
    }
    return written(options)


def is_wanted(begin: TraceBegin, rank: int) -> bool:
    """Return whether the trace includes this rank."""
    return not begin.ranks or rank in begin.ranks


def _word(value: bool) -> str:
    return "true" if value else "false"
