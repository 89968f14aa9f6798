"""The runner's relay of streams and the container's first process, without an engine."""

import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.node_agent.runtimes.containers import INIT

RELAY = """
import socket, sys
from services.node_agent.runtimes import runner
streams = runner.Streams(socket.socket(fileno=int(sys.argv[1])), True)
closed = socket.socket()
closed.close()
runner.relay(streams, runner.catch_signals(), ("", ""), (closed, closed))
"""
BIG = 4 << 20
NOBODY = 65_534


def test_a_container_that_writes_before_it_reads_is_heard(tmp_path: Path) -> None:
    """The socket's buffers are full in both directions when the container begins to read."""
    (tmp_path / "input").write_bytes(os.urandom(BIG))
    frame = b"\1\0\0\0" + (1 << 15).to_bytes(4, "big") + b"x" * (1 << 15)
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    with (tmp_path / "input").open("rb") as given, (tmp_path / "output").open("wb") as output, ours:
        line = [sys.executable, "-c", RELAY, str(theirs.fileno())]
        with subprocess.Popen(
            line, stdin=given, stdout=output, pass_fds=[theirs.fileno()]
        ) as child:
            theirs.close()
            try:
                time.sleep(0.5)
                ours.sendall(frame * (BIG >> 15))
                taken = b""
                while data := ours.recv(1 << 20):
                    taken += data
                ours.shutdown(socket.SHUT_WR)
                child.wait(20)
            finally:
                child.kill()
    assert (tmp_path / "output").read_bytes() == b"x" * BIG
    assert taken == (tmp_path / "input").read_bytes()


needs_init = pytest.mark.skipif(not INIT.exists(), reason=f"no init for {platform.machine()}")


@needs_init
def test_no_process_begins_on_a_cut_tether(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tether")
    line = [str(INIT), str(tmp_path / "tether"), "/bin/sh", "-c", f"echo began > {tmp_path}/began"]
    assert subprocess.run(line, capture_output=True, check=False).returncode == 125
    assert not (tmp_path / "began").exists()
    held = os.open(tmp_path / "tether", os.O_RDWR)
    assert subprocess.run(line, capture_output=True, check=False).returncode == 0
    assert (tmp_path / "began").exists()
    os.close(held)


@needs_init
@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is begun as root")
def test_a_job_cannot_trace_what_holds_its_tether(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tether")
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    held = os.open(tmp_path / "tether", os.O_RDWR)
    os.chmod(tmp_path / "tether", 0o444)
    copy = tmp_path / "init"
    copy.write_bytes(INIT.read_bytes())
    copy.chmod(0o755)
    line = [str(copy), str(tmp_path / "tether"), "/bin/sh", "-c", "echo began; exec sleep 60"]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, user=NOBODY, group=NOBODY, extra_groups=[]
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"began\n"
        own, (job,) = (
            Path(f"/proc/{child.pid}"),
            Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split(),
        )
        assert (own / "fd").stat().st_uid == 0 and Path(f"/proc/{job}/fd").stat().st_uid == NOBODY
        os.close(held)
        assert child.wait(5) == 137
        os.kill(int(job), 9)
