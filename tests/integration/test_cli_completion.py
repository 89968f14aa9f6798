"""Completion of jobs, nodes and models: the real bash, the real command, a gateway that the test
plays.
"""

import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from libs.cli.main import muster
from libs.cli.terminal.completion_script import script
from tests.integration.cli_world import Request, World, job

# The start of an interpreter on a busy machine, and the bound of the look-up.
PATIENCE_S: Final = 10.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.routes["GET /v1/jobs"] = {"jobs": [job("jaaaaaaaaaa"), job("jbbbbbbbbbb", name="eval")]}
    made.routes["GET /v1/nodes"] = {"nodes": [{"id": "node-1"}, {"id": "gpu-07"}]}
    made.routes["GET /v1/deployments"] = {"deployments": [{"name": "chat"}]}
    program = tmp_path / "muster"
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "from libs.cli.main import main; main()" "$@"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "muster.bash").write_text(script("bash", muster))
    yield made
    made.close()


def completed(world: World, words: Sequence[str], **more: str) -> tuple[list[str], str]:
    """The words that bash offers, and what was written to stderr."""
    call = (
        f'source {world.home}/muster.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _muster; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environ = world.environ(PYTHONPATH=str(Path.cwd()), **more)
    environ["PATH"] = f"{world.home}:{environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", call, "bash", *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
        env=environ,
    )
    return done.stdout.split(), done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["muster", "describe", "ja"], ["jaaaaaaaaaa"]),
        (["muster", "cancel", "jaaaaaaaaaa", "ev"], ["eval"]),
        (["muster", "drain", "gp"], ["gpu-07"]),
        (["muster", "log", "--node", "no"], ["node-1"]),
        (["muster", "submit", "--nodelist", "no"], ["node-1"]),
        (["muster", "scale", "ch"], ["chat"]),
        (["muster", "model", "share", "ch"], ["chat"]),
        (["muster", "memory", "j"], ["jaaaaaaaaaa", "jbbbbbbbbbb"]),
    ],
)
def test_names_of_the_cluster_complete_an_argument(
    world: World, words: list[str], expected: list[str]
) -> None:
    assert completed(world, words) == (expected, "")


def test_options_are_completed_without_a_request(world: World) -> None:
    assert completed(world, ["muster", "describe", "--hel"]) == (["--help"], "")
    assert world.seen == []


def test_a_gateway_that_is_away_gives_no_names_and_no_error(world: World) -> None:
    assert completed(world, ["muster", "describe", "ja"], MUSTER_URL="http://127.0.0.1:9") == (
        [],
        "",
    )
    world.profile({"gateway": 7})
    assert completed(world, ["muster", "describe", "ja"], MUSTER_URL="nonsense") == ([], "")


def test_a_gateway_that_never_answers_ends_the_look_up(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        assert completed(world, ["muster", "describe", "ja"], MUSTER_URL=url) == ([], "")
        assert time.monotonic() - began < PATIENCE_S


def test_a_name_that_a_shell_would_expand_is_left_out(world: World) -> None:
    def nodes(_: Request) -> object:
        return {"nodes": [{"id": "$(touch expanded)"}, {"id": "node-1;ls"}, {"id": "node-1"}]}

    world.routes["GET /v1/nodes"] = nodes
    assert completed(world, ["muster", "drain", ""])[0][-1] == "node-1"
    assert not (world.home / "expanded").exists()
