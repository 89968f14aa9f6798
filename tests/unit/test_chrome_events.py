"""Events of one rank's trace: exact times, ids of their own, and names with the rank."""

from decimal import Decimal
from typing import Any

import msgspec
import pytest

from libs.common.traces.chrome_events import (
    CLOSING,
    PIDS_MAX,
    Aligner,
    Alignment,
    encoded,
    exact_ns,
    microseconds,
    number,
    opening,
)
from libs.common.traces.clock_offset import ClockPoint

BASE = 1_790_000_000_000_000_000


def aligner(place: int = 3, shift: int = 0) -> Aligner:
    point = ClockPoint(BASE, shift)
    return Aligner(Alignment(BASE + shift, point, point, place, "rank 1"), BASE)


def moved(event: dict[str, Any], by: Aligner | None = None) -> dict[str, Any]:
    found = (by or aligner()).aligned(event)
    assert found is not None
    return found


def test_times_keep_every_nanosecond() -> None:
    found = moved(
        {"ph": "X", "pid": 7, "tid": 8, "ts": Decimal("123456789.123"), "dur": Decimal("1.5")}
    )
    assert found["ts"] == Decimal("123456789.123")
    assert b'"ts":123456789.123' in encoded(found)


def test_times_move_by_the_shift_of_the_clock() -> None:
    by = Aligner(Alignment(BASE, ClockPoint(BASE, 500), ClockPoint(BASE, 500), 0, "rank 0"), BASE)
    assert moved({"ph": "i", "pid": 1, "ts": 2}, by)["ts"] == Decimal("2.5")
    assert (by.first_ns, by.last_ns) == (BASE + 2_500, BASE + 2_500)


def test_the_first_and_the_last_time_are_known() -> None:
    by = aligner()
    moved({"ph": "X", "pid": 1, "ts": 10, "dur": 5}, by)
    moved({"ph": "X", "pid": 1, "ts": 8, "dur": 1}, by)
    assert (by.first_ns, by.last_ns) == (BASE + 8_000, BASE + 15_000)


def test_processes_of_different_files_have_different_numbers() -> None:
    first, second = aligner(place=3), aligner(place=4)
    pids = [moved({"ph": "i", "pid": pid, "ts": 1}, first)["pid"] for pid in (0, "Spans", 0)]
    assert pids == [3_001, 3_002, 3_001]
    assert moved({"ph": "i", "ts": 1}, second)["pid"] == 4_001


def test_a_file_with_too_many_processes_loses_their_events() -> None:
    by = aligner()
    for pid in range(PIDS_MAX + 1):
        by.aligned({"ph": "i", "pid": pid, "ts": 1})
    assert by.dropped == 1


def test_threads_keep_their_numbers_and_names_become_numbers() -> None:
    by = aligner()
    tids = [
        moved({"ph": "i", "pid": 1, "tid": tid, "ts": 1}, by)["tid"] for tid in (9, "x", "y", "x")
    ]
    assert tids == [9, 1 << 30, (1 << 30) + 1, 1 << 30]


def test_flows_of_different_files_do_not_meet() -> None:
    assert moved({"ph": "s", "id": 5, "pid": 1, "ts": 1})["id"] == 3 * (1 << 32) + 5
    assert moved({"ph": "s", "id": "5", "pid": 1, "ts": 1})["id"] == "3/5"


def test_names_of_processes_begin_with_the_rank() -> None:
    by = aligner()
    name = moved(
        {"ph": "M", "name": "process_name", "pid": 1, "ts": 0, "args": {"name": "python"}}, by
    )
    assert name == {
        "ph": "M",
        "name": "process_name",
        "pid": 3_001,
        "args": {"name": "rank 1: python"},
    }
    order = moved(
        {"ph": "M", "name": "process_sort_index", "pid": 1, "args": {"sort_index": 9}}, by
    )
    assert order["args"] == {"sort_index": 3_001}
    bare = moved({"ph": "M", "name": "process_name", "pid": 2, "args": "?"}, by)
    assert bare["args"] == {"name": "rank 1: "}
    other = moved({"ph": "M", "name": "thread_name", "pid": 3, "args": {"name": "main"}}, by)
    assert other["args"] == {"name": "main"}
    assert [event["args"]["name"] for event in by.names()] == ["rank 1: 3"]


@pytest.mark.parametrize(
    "event",
    [
        7,
        {"ph": "X"},
        {"ph": "X", "ts": "1"},
        {"ph": "X", "ts": True},
        {"ph": "X", "ts": 1, "dur": "x"},
        {"ph": "X", "ts": Decimal("Infinity")},
        {"ph": "X", "ts": -1},
    ],
)
def test_what_cannot_be_read_is_counted_and_left_out(event: object) -> None:
    by = aligner()
    assert by.aligned(event) is None
    assert by.dropped == 1


def test_nanoseconds_and_microseconds_are_the_same_time() -> None:
    assert exact_ns(Decimal("0.001")) == 1
    assert microseconds(-1_001) == Decimal("-1.001")


def test_numbers_that_no_reader_holds_are_refused() -> None:
    assert number("1e-400") == Decimal("1e-400")
    with pytest.raises(ValueError, match="too large"):
        number("1e301")
    with pytest.raises(ValueError, match="not a time"):
        exact_ns(1 << 62)


def test_a_merged_trace_is_json() -> None:
    text = opening({"job": "j"}) + b",\n" + encoded({"ph": "i", "ts": Decimal("0.5")}) + CLOSING
    found = msgspec.json.decode(text)
    assert found["otherData"] == {"job": "j"}
    assert [event["ph"] for event in found["traceEvents"]] == ["M", "i"]
