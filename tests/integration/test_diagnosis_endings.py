"""A rank that ends by an exception tells the agent where; of several, the cause comes first."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from libs.common.diagnosis import evidence as e
from libs.common.diagnosis.rules import diagnose
from services.node_agent.diagnosis.endings import NUMBER_MAX, endings
from services.node_agent.diagnosis.launch_hook import HOOK
from services.node_agent.diagnosis.rank_processes import RankProcess
from tests.unit.diagnosis_world import node, process, waits

FAILS = "def all_reduce():\n    raise BrokenPipeError\ndef load():\n    [][1]\n"


def alive(rank: int) -> RankProcess:
    """Return a rank of a node that has ranks 4 to 7 of 8."""
    return RankProcess(
        100 + rank, 0, "python", rank, 8, rank - 4, 4, "", is_launched=False, is_python=True
    )


def run(folder: Path, rank: int, ends: str) -> None:
    """Run a rank to its end."""
    (folder / "train.py").write_text(FAILS + ends)
    subprocess.run(
        [sys.executable, str(folder / "train.py")],
        env={
            **os.environ,
            "PYTHONPATH": HOOK,
            "MUSTER_CHECKPOINT_FILE": str(folder / "checkpoint"),
            "RANK": str(rank),
            "WORLD_SIZE": "8",
        },
        stderr=subprocess.DEVNULL,
    )


def test_a_rank_that_failed_in_its_own_code_is_the_cause(tmp_path: Path) -> None:
    run(tmp_path, 5, "all_reduce()")
    run(tmp_path, 6, "load()")
    found = endings(str(tmp_path), [alive(4), alive(7)], ())
    assert {one.rank: one.error for one in found} == {5: "BrokenPipeError", 6: "IndexError"}
    last = node(1, process(4, waits()), process(7, waits()))
    seen = [node(0, *(process(rank, waits()) for rank in range(4)))]
    verdict = diagnose([*seen, msgspec.structs.replace(last, endings=found)])
    assert [one.rank for one in verdict.suspects] == [6, 5]
    assert "Rank 6 on node-2 and 1 more ended: its program ended with IndexError in load" in (
        verdict.sentence
    )


def test_an_exception_of_a_program_that_a_rank_starts_does_not_end_the_rank(
    tmp_path: Path,
) -> None:
    helper = tmp_path / "helper.py"
    helper.write_text("raise KeyError")
    run(tmp_path, 6, f"import subprocess, sys\nsubprocess.run([sys.executable, {str(helper)!r}])")
    assert endings(str(tmp_path), [alive(4)], ()) == ()


def test_a_rank_that_is_started_again_has_no_ending_of_before(tmp_path: Path) -> None:
    run(tmp_path, 6, "load()")
    assert len(endings(str(tmp_path), [alive(4)], ())) == 1
    assert len(endings(str(tmp_path), [alive(4), alive(6)], (), [106])) == 1
    run(tmp_path, 6, "pass")
    assert endings(str(tmp_path), [alive(4)], ()) == ()


@pytest.mark.parametrize("ends", ["pass", "sys.exit(1)", "import os; os._exit(1)"])
def test_a_rank_that_leaves_without_an_exception_tells_nothing(tmp_path: Path, ends: str) -> None:
    run(tmp_path, 6, f"import sys\n{ends}")
    assert endings(str(tmp_path), [alive(4)], ()) == ()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"world": 4, "at_ns": 1, "error": "E"}', b'{"world": 8, "at_ns": "x"}'],
)
def test_a_file_that_is_no_ending_of_this_job_is_left_out(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ended_rank_6").write_bytes(content)
    assert endings(str(tmp_path), [alive(4)], ()) == ()


def test_a_pipe_or_a_link_in_place_of_the_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ended_rank_6")
    (tmp_path / "ended_rank_5").symlink_to("/etc/passwd")
    assert endings(str(tmp_path), [alive(4)], ()) == ()
    assert stat.S_ISFIFO((tmp_path / "ended_rank_6").stat().st_mode)


def test_numbers_and_texts_of_a_job_are_bounded(tmp_path: Path) -> None:
    frames = [["f" * 999, "p" * 999, 2**62]] * 40
    written = {"world": 8, "at_ns": 2**63, "error": "E" * 999, "stack": frames}
    (tmp_path / "ended_rank_6").write_text(json.dumps(written))
    assert endings(str(tmp_path), [alive(4)], ()) == ()  # longer than what is read
    (tmp_path / "ended_rank_6").write_text(json.dumps({**written, "stack": frames[:3]}))
    (found,) = endings(str(tmp_path), [alive(4)], ())
    assert (found.at_ns, len(found.error)) == (NUMBER_MAX, e.TEXT_MAX)
    assert len(found.stack[0].function) == e.TEXT_MAX
    assert msgspec.msgpack.encode(found)
