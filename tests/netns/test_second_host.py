"""Another host joins over TLS with a token, runs a gang with the first, and is removed."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from libs.embedded.servers import free_ports
from tests.netns.conftest import Wire

MUSTER = str(Path(sys.executable).parent / "muster")


class Here:
    """The first host: `muster up` and the commands of its user."""

    def __init__(self, state: Path, wire: Wire) -> None:
        self.state, self.wire = state, wire
        self.environ = {
            **os.environ,
            "MUSTER_PROFILE": str(state / "profile.json"),
            "MUSTER_GATEWAY_TLS_PORT": str(free_ports(1)[0]),
        }
        self.log = (state / "up.log").open("wb")
        up = [
            MUSTER,
            "up",
            "--nodes",
            "1",
            "--gpus",
            "2",
            "--port",
            str(free_ports(1)[0]),
            "--state",
            str(state / "cluster"),
        ]
        self.process = subprocess.Popen(
            [*up, "--listen", wire.here], env=self.environ, stdout=self.log, stderr=self.log
        )

    def muster(self, *words: str, timeout_s: float = 60) -> str:
        done = subprocess.run(
            [MUSTER, *words], env=self.environ, capture_output=True, text=True, timeout=timeout_s
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def said(self) -> str:
        return (self.state / "up.log").read_text()

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


@pytest.fixture
def here(tmp_path: Path, wire: Wire) -> Iterator[Here]:
    found = Here(tmp_path, wire)
    try:
        until(lambda: "muster is up" in found.said(), 40, found.said)
        yield found
    finally:
        found.end()


def until(true: Callable[[], bool], within_s: float, why: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, why()
        time.sleep(0.1)


def join(here: Here, state: Path, line: str) -> "subprocess.Popen[bytes]":
    words = [*line.split()[1:], "--simulated-gpus", "2", "--state", str(state)]
    with (here.state / f"{state.name}.log").open("wb") as log:
        environ = {
            **os.environ,
            "MUSTER_JOB_USERS": "*=self",
        }  # a checkout of root's is closed to others
        return subprocess.Popen(
            here.wire.inside(MUSTER, *words), env=environ, stdout=log, stderr=log
        )


@pytest.mark.drill
def test_a_second_host_joins_runs_a_gang_with_the_first_and_is_removed(
    here: Here, tmp_path: Path
) -> None:
    line = here.muster("node", "add", "far").strip()
    agent = join(here, tmp_path / "far", line)
    log = tmp_path / "far.log"
    try:
        until(lambda: "far" in here.muster("nodes", "--no-headers"), 30, log.read_text)
        assert here.wire.there in here.muster("nodes", "--no-headers")
        (tmp_path / "word").write_text("xyzzy")
        here.muster("secret", "set", "word", "--from-file", str(tmp_path / "word"))
        both = (
            "--nodes",
            "2",
            "--gpus",
            "1",
            "--secret",
            "word=WORD",
            "--",
            "sh",
            "-c",
            'test "$WORD" = xyzzy',
        )
        job = here.muster("submit", *both).split()[0]
        here.muster("wait", job)
        shown = here.muster("describe", job)
        assert "far" in shown and "node-1" in shown

        used = subprocess.run(
            here.wire.inside(MUSTER, *line.split()[1:], "--state", str(tmp_path / "thief")),
            capture_output=True,
            text=True,
        )
        assert used.returncode != 0 and "was used" in used.stderr

        here.muster("node", "remove", "far")
        assert agent.wait(30) == 2
        assert "was removed from the cluster" in log.read_text()
        until(lambda: "far" not in here.muster("nodes", "--no-headers"), 20)
        until(lambda: "nodes of other machines: none" in here.said(), 20, here.said)
        again = subprocess.Popen(
            here.wire.inside(MUSTER, "join", "--again", "--state", str(tmp_path / "far")),
            stdout=-3,
            stderr=-3,
        )
        with pytest.raises(subprocess.TimeoutExpired):
            again.wait(3)
        again.terminate()
        again.wait(20)
        assert "far" not in here.muster("nodes", "--no-headers")
    finally:
        agent.kill()
        agent.wait()


def test_a_token_of_another_cluster_gets_no_information(here: Here, tmp_path: Path) -> None:
    words = here.muster("node", "add", "far").split()
    kind, node_id, fingerprint, secret = words[4].split(".")
    other = ".".join((kind, node_id, "0" * len(fingerprint), secret))
    done = subprocess.run(
        here.wire.inside(
            MUSTER, "join", words[2], "--token", other, "--state", str(tmp_path / "x")
        ),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "not the cluster that created this token" in done.stderr
    assert not (tmp_path / "x").exists()
