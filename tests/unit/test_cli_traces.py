"""The rows and sentences of `muster trace`."""

from typing import Any

import pytest

from libs.cli.traces import costs, list_row, ranks_of, rows

RANK: dict[str, Any] = {
    "rank": 1, "node_id": "n1", "pid": 7, "tracer": "torch", "events": 5, "size_bytes": 2_048,
    "cores_before": 0.5, "cores_during": 1.0, "write_ms": 1_500, "error": "", "dropped": 2,
    "tracer_ms": 300,
}  # fmt: skip
TRACE: dict[str, Any] = {
    "id": "1-a", "state": "ready", "origin_ns": 1_790_000_000_000_000_000, "duration_ms": 2_500,
    "events": 5, "size_bytes": 2_048, "overhead_pct": 1.5, "reference": "n0", "error_ns": 250_000,
    "ranks": [RANK], "nodes": [{"node_id": "n1", "error": ""}, {"node_id": "n2", "error": "away"}],
}  # fmt: skip


def test_ranks_are_numbers_with_commas() -> None:
    assert ranks_of(["0,7", "7", " 3"]) == [0, 7, 3]


@pytest.mark.parametrize("text", ["", "a", "-1", "1,,2", "12345678"])
def test_anything_else_is_no_rank(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rank"):
        ranks_of([text])


def test_each_process_and_each_silent_node_has_a_row() -> None:
    first, second = rows(TRACE)
    assert first[:3] == ["1", "n1", "7"]
    assert first[-1] == "2 events could not be read"
    assert (second[1], second[-1]) == ("n2", "away")
    assert rows({**TRACE, "ranks": [{**RANK, "dropped": 0}]})[0][-1] == ""


def test_costs_name_the_clocks_and_the_overhead() -> None:
    text = costs(TRACE)
    assert "the clocks of 2 nodes agree within 0.250 ms of n0" in text
    assert "overhead: +1.5 % processor time" in text
    assert "clock of n0" in costs({**TRACE, "nodes": TRACE["nodes"][:1]})


def test_a_kept_trace_has_a_row() -> None:
    assert list_row(TRACE)[:4] == ["1-a", "ready", "2026-09-21T14:13:20Z", "2.5 s"]
