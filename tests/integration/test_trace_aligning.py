"""The process that aligns a trace: real files through the real program, good and hostile ones."""

import gzip
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from libs.common.traces.chrome_events import Alignment
from libs.common.traces.clock_offset import ClockPoint
from services.node_agent.tracing.aligning import ERROR_MAX, Aligned

BASE = 1_790_000_000_000_000_000
HEAD = b'{"baseTimeNanoseconds": %d, "distributedInfo": {"rank": 6}, "traceEvents": [' % BASE
STEP = b'{"ph": "X", "name": "a", "pid": 1, "tid": 2, "ts": 10.125, "dur": 2.5, "args": {"x": 0.5}}'


def aligned(raw: bytes, folder: Path) -> tuple[Aligned, list[dict[str, object]]]:
    point = ClockPoint(BASE, 1_000)
    alignment = Alignment(BASE, point, point, 2, "rank 6")
    source, target = folder / "raw.json", folder / "out.gz"
    source.write_bytes(raw)
    with source.open("rb") as given, target.open("wb") as out:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "services.node_agent.tracing.aligning"),
                msgspec.json.encode(alignment),
            ],
            stdin=given,
            stdout=out,
            stderr=subprocess.PIPE,
            check=False,
        )
    found = msgspec.json.decode(done.stderr, type=Aligned)
    text = b"" if found.error else gzip.decompress(target.read_bytes())
    return found, msgspec.json.decode(b"[" + text.lstrip(b",\n") + b"]")


def test_a_file_becomes_a_member_of_the_merged_trace(tmp_path: Path) -> None:
    found, events = aligned(HEAD + STEP + b"]}", tmp_path)
    assert (found.events, found.rank, found.error) == (1, 6, "")
    assert (found.first_ns, found.last_ns) == (BASE + 11_125, BASE + 13_625)
    step, name = events
    assert (step["ts"], step["dur"], step["pid"], step["args"]) == (11.125, 2.5, 2_001, {"x": 0.5})
    assert name["args"] == {"name": "rank 6: 1"}


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"\xff\xfe", b'{"traceEvents": 7}', b"[" * 100_000, HEAD + b"NaN]}"]
)
def test_what_is_no_trace_is_an_error_with_a_reason(raw: bytes, tmp_path: Path) -> None:
    found, _ = aligned(raw, tmp_path)
    assert "is not a trace" in found.error


def test_hostile_events_are_left_out_and_counted(tmp_path: Path) -> None:
    deep = b'{"ph": "X", "ts": 1, "args": ' + b"[" * 900 + b"]" * 900 + b"}"
    bad = [b"7", b'"x"', b"null", b'{"ts": 1e400, "ph": "X"}', b'{"ph": "X", "ts": "1"}', deep]
    found, events = aligned(HEAD + b",".join([*bad, STEP]) + b"]}", tmp_path)
    assert found.events + found.dropped == len(bad) + 1
    assert [event.get("name") for event in events if event["ph"] == "X"][-1:] == ["a"]
    assert found.dropped >= len(bad) - 1


def test_an_error_that_a_job_wrote_is_cut(tmp_path: Path) -> None:
    found, _ = aligned(b'{"traceEvents": [], "error": "' + b"A" * (4 << 20) + b'"}', tmp_path)
    assert found.error == "A" * ERROR_MAX
