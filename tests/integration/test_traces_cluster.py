"""A whole cluster: `muster trace` of a gang, with a stand-in for PyTorch and with PyTorch itself.

`make drills` runs both. The second needs a Python with torch: TORCH_PYTHON, else the one that runs
the tests.
"""

import asyncio
import gzip
import importlib.util
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.cluster import Chaos, running
from tests.integration.test_cli_identity import Shell
from tests.integration.test_files_cluster import shell_of
from tests.perfetto import answers

pytestmark = [pytest.mark.drill, pytest.mark.timeout(400)]

# PyTorch asks every 5 s.
ASKS_S = 6.0
TESTS = Path(__file__).parents[1]
ONE_MS = 1_000
ONE_MS_NS = 1_000_000
PROCESSES = """thread_track t on s.track_id = t.id join thread using (utid)
  join process p using (upid)"""
QUERIES = (
    "select name from stats where severity = 'error' and value > 0",
    f"select distinct p.name from slice s join {PROCESSES} where s.name = 'aten::mm'",
    f"""select p.name, s.ts, s.dur from slice s join {PROCESSES}
        where s.name = 'gloo:barrier' order by s.ts""",
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Chaos]:
    async with running(tmp_path, nodes=2, gpus=1) as found:
        yield found


def torch_python() -> str:
    """Return a Python with torch, or skip."""
    if found := os.environ.get("TORCH_PYTHON"):
        return found
    if importlib.util.find_spec("torch") is None:
        pytest.skip("set TORCH_PYTHON to a Python with torch")
    return sys.executable


async def started(shell: Shell, *command: str) -> None:
    await shell.run("submit", "-N", "2", "-g", "1", "--cpus", "2", "-J", "ddp", "--", *command)


async def printed(shell: Shell, word: str) -> None:
    """Wait until the job's first rank has printed the word, and asks to be traced."""
    while word not in (await shell.run("logs", "ddp"))[0]:
        await asyncio.sleep(1)
    await asyncio.sleep(ASKS_S)


def events_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return events


def ranks_of(events: list[dict[str, Any]]) -> dict[int, int]:
    """Return the rank of each process number of a trace."""
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return {pid: int(re.fullmatch(r"rank (\d+): .*", name)[1]) for pid, name in names.items()}  # type: ignore[index]


async def test_all_ranks_of_a_gang_are_in_one_file_on_one_clock(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    await started(shell, sys.executable, str(TESTS / "traced.py"))
    await printed(shell, "asks")
    out, _ = await shell.run("trace", "ddp", "--for", "2s", "--file", "t.json.gz")
    assert "the clocks of 2 nodes agree within" in out and "overhead: " in out
    events = events_of(tmp_path / "t.json.gz")
    ranks = ranks_of(events)
    steps = [event for event in events if event["name"] == "step"]
    assert {ranks[step["pid"]] for step in steps} == {0, 1}
    moments = defaultdict[str, list[float]](list)
    for step in steps:
        moments[step["args"]["at"]].append(step["ts"])
    both = [max(times) - min(times) for times in moments.values() if len(times) == 2]
    assert len(both) > 20 and max(both) < ONE_MS
    out, _ = await shell.run("trace", "ddp", "--rank", "1", "--for", "1s", "--file", "one.json.gz")
    assert set(ranks_of(events_of(tmp_path / "one.json.gz")).values()) == {1}
    out, _ = await shell.run("trace", "ddp", "--list")
    assert len(out.splitlines()) == 3


async def test_unmodified_pytorch_is_traced_on_four_ranks(cluster: Chaos, tmp_path: Path) -> None:
    shell, python = shell_of(cluster, tmp_path), torch_python()
    await started(shell, python, str(TESTS / "torch_ranks.py"), "600")
    await printed(shell, "trains")
    out, _ = await shell.run("trace", "ddp", "--for", "2s", "--file", "t.json.gz")
    assert out.count("torch") == 4
    events = events_of(tmp_path / "t.json.gz")
    ranks = ranks_of(events)
    operators = {ranks[e["pid"]] for e in events if e.get("cat") == "cpu_op"}
    assert operators == {0, 1, 2, 3}
    errors, names, barriers = answers((tmp_path / "t.json.gz").read_bytes(), QUERIES)
    assert errors == []
    assert {int(name.split()[1].rstrip(":")) for (name,) in names} == {0, 1, 2, 3}
    assert met(barriers) > len(barriers) // 8


def met(barriers: Sequence[tuple[Any, ...]]) -> int:
    """Return the barriers of rank 0 that all ranks were in at one moment; fail if one was left
    before another rank came.
    """
    spans = defaultdict[str, list[tuple[int, int]]](list)
    for name, start_ns, length_ns in barriers:
        spans[name].append((start_ns, start_ns + length_ns))
    first, *others = (spans[name] for name in sorted(spans))
    last_begun_ns = min(each[-1][0] for each in spans.values())
    whole = [span for span in first[1:] if span[1] < last_begun_ns]
    for start_ns, end_ns in whole:
        for other in others:
            assert any(s < end_ns + ONE_MS_NS and e > start_ns - ONE_MS_NS for s, e in other)
    return len(whole)
