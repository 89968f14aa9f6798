"""The files of sbatch -o and -e, with a real shell."""

import subprocess
from pathlib import Path

import pytest

from libs.cli.slurm.output_files import path_of, redirected
from libs.common.errors import Refused

SCRIPT = ["/bin/sh", "-c", "echo out; echo err >&2", "x"]


def run(folder: Path, command: list[str], **environ: str) -> tuple[str, str]:
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "jx", "SLURM_NODEID": "0", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


def test_without_files_the_command_is_unchanged() -> None:
    assert redirected(SCRIPT, "", "", append=False, nodes=1) is SCRIPT


def test_one_file_takes_both_streams_and_two_take_one_each(tmp_path: Path) -> None:
    both = redirected(SCRIPT, "o-%j.out", "", append=False, nodes=1)
    assert run(tmp_path, both) == ("", "")
    assert (tmp_path / "o-jx.out").read_text() == "out\nerr\n"
    each = redirected(SCRIPT, "o", "e", append=False, nodes=1)
    assert run(tmp_path, each) == ("", "")
    assert ((tmp_path / "o").read_text(), (tmp_path / "e").read_text()) == ("out\n", "err\n")
    assert run(tmp_path, redirected(SCRIPT, "", "e2", append=False, nodes=1)) == ("out\n", "")


def test_append_keeps_what_was_there(tmp_path: Path) -> None:
    for append in (False, True):
        run(tmp_path, redirected(SCRIPT, "o", "", append=append, nodes=1))
    assert (tmp_path / "o").read_text() == "out\nerr\n" * 2


def test_only_the_first_node_writes_a_file_that_all_nodes_name_alike(tmp_path: Path) -> None:
    command = redirected(SCRIPT, "o", "", append=False, nodes=2)
    assert run(tmp_path, command, SLURM_NODEID="1") == ("out\n", "err\n")
    own = redirected(SCRIPT, "o-%n", "", append=False, nodes=2)
    run(tmp_path, own, SLURM_NODEID="1")
    assert (tmp_path / "o-1").exists() and not (tmp_path / "o").exists()


def test_a_pattern_becomes_a_word_of_a_shell(tmp_path: Path) -> None:
    words = f"printf %s {path_of('a b/%x-%3a-%A-%%$(id)')}"
    environ = {"SLURM_JOB_NAME": "train it", "SLURM_ARRAY_TASK_ID": "7"}
    assert run(tmp_path, ["/bin/sh", "-c", words], **environ)[0] == "a b/train it-007-jx-%$(id)"


def test_a_letter_without_a_value_is_refused() -> None:
    with pytest.raises(Refused, match="%s in the file name 'x-%s' is not supported: use %j, "):
        path_of("x-%s")
