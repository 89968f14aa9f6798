"""A container engine that stops while its job runs is named in the job's end.

The engine is a small server of the test.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.node_agent.runtimes import runner
from services.node_agent.supervisor import records

WAIT_S = 30.0
OK = b"HTTP/1.1 204 No Content\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[str]:
    """Serve the creation, attachment and start of one container, then stop."""
    path = str(tmp_path / "engine.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    listener.settimeout(WAIT_S)  # a runner that asks for less must not leave this thread behind

    def serve() -> None:
        with listener:
            _answer(listener, OK).close()
            stream = _answer(listener, UPGRADED)
            _answer(listener, OK).close()
        stream.close()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    yield path
    serving.join(WAIT_S)


def _answer(listener: socket.socket, answer: bytes) -> socket.socket:
    """Read one whole request: a connection that is closed over unread bytes is reset."""
    connected, _ = listener.accept()
    request = b""
    while b"\r\n\r\n" not in request:
        request += connected.recv(1 << 16)
    head, _, body = request.partition(b"\r\n\r\n")
    length = [
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    while length and len(body) < length[0]:
        body += connected.recv(1 << 16)
    connected.sendall(answer)
    return connected


def test_a_job_says_that_its_container_engine_was_lost(tmp_path: Path, engine: str) -> None:
    made = {
        "engine": engine,
        "name": "c",
        "tether": f"{tmp_path}/tether",
        "mount": f"{tmp_path}/mount",
        "mounts": [],
        "workdir": "",
        "ids": [],
    }
    body: dict[str, dict[str, list[str]]] = {"HostConfig": {"Mounts": []}}
    env = {runner.VARIABLE: json.dumps({**made, "stdin": False, "body": body})}
    ended = subprocess.run(
        [sys.executable, "-I", "-S", runner.__file__],
        env=env,
        capture_output=True,
        check=False,
        timeout=20,
    )
    assert ended.returncode == runner.FAILED
    assert records.read_failure(str(tmp_path)).startswith("the container engine was lost: ")
    assert os.stat(tmp_path / records.FAILURE).st_mode & 0o077 == 0
    assert records.FAILURE == runner.FAILURE


def test_an_attempt_without_a_failed_container_has_no_such_words(tmp_path: Path) -> None:
    assert records.read_failure(str(tmp_path)) == ""
