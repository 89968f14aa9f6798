"""The rows and sentences of `muster trace`. Tests: tests/unit/test_cli_traces.py."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from libs.cli.flags.sizes import show_size
from libs.cli.terminal.table import Column

COLUMNS: Final = (
    Column("RANK", right=True),
    Column("NODE"),
    Column("PID", right=True),
    Column("TRACER"),
    Column("EVENTS", right=True),
    Column("SIZE", right=True),
    Column("CPU BEFORE", right=True),
    Column("CPU TRACED", right=True),
    Column("WRITTEN AFTER", right=True),
    Column("NOTE", flexible=True),
)
LIST_COLUMNS: Final = (
    Column("ID"),
    Column("STATE"),
    Column("BEGAN"),
    Column("FOR", right=True),
    Column("RANKS", right=True),
    Column("EVENTS", right=True),
    Column("SIZE", right=True),
)
RANK_DIGITS: Final = 7


def ranks_of(texts: Iterable[str]) -> list[int]:
    """Return the ranks that `0`, `7` or `0,7` name. Raises ValueError."""
    found = list[int]()
    for text in texts:
        for part in text.split(","):
            word = part.strip()
            if not (word.isascii() and word.isdigit() and len(word) <= RANK_DIGITS):
                raise ValueError(f"{part!r} is not a rank: use a number, or several as in 0,7")
            found.append(int(word))
    return list(dict.fromkeys(found))


def rows(trace: dict[str, Any]) -> list[list[str]]:
    """Return a row for each process, then one for each node that has no part."""
    ready = [
        [
            str(rank["rank"]),
            rank["node_id"],
            str(rank["pid"]),
            rank["tracer"],
            str(rank["events"]),
            show_size(rank["size_bytes"]),
            f"{rank['cores_before']:.2f}",
            f"{rank['cores_during']:.2f}",
            f"{rank['write_ms'] / 1_000:.1f} s",
            rank["error"] or _dropped(rank["dropped"]),
        ]
        for rank in trace["ranks"]
    ]
    silent = [
        ["-", node["node_id"], *["-"] * 7, node["error"]]
        for node in trace["nodes"]
        if node["error"]
    ]
    return ready + silent


def costs(trace: dict[str, Any]) -> str:
    """Return what tracing cost, and how well the clocks agree."""
    tracer_ms = sum(rank["tracer_ms"] for rank in trace["ranks"])
    clocks = (
        f"the clocks of {len(trace['nodes'])} nodes agree within "
        f"{trace['error_ns'] / 1_000_000:.3f} ms of {trace['reference']}"
        if len(trace["nodes"]) > 1
        else f"all times are on the clock of {trace['reference']}"
    )
    return (
        f"{trace['events']} events; {clocks}\n"
        f"overhead: {trace['overhead_pct']:+.1f} % processor time of the traced processes, and "
        f"{tracer_ms / 1_000:.1f} s of the tracer's own threads"
    )


def list_row(trace: dict[str, Any]) -> list[str]:
    """Return the row of a kept trace."""
    began = datetime.fromtimestamp(trace["origin_ns"] // 1_000_000_000, UTC)
    return [
        trace["id"],
        trace["state"],
        began.strftime("%Y-%m-%dT%H:%M:%SZ"),
        f"{trace['duration_ms'] / 1_000:g} s",
        str(len(trace["ranks"])),
        str(trace["events"]),
        show_size(trace["size_bytes"]),
    ]


def _dropped(events: int) -> str:
    return f"{events} events could not be read" if events else ""
