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


@pytest.fixture(params=[[], [b"nonsense\r\n\r\n"]])
def engine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Serve the creation, attachment and start of one container, then stop or answer nonsense."""
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
            for nonsense in request.param:
                _answer(listener, nonsense).close()

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


def run(folder: Path, engine: str) -> int:
    """Run the runner for a container of this engine; return its exit code."""
    made = {
        "engine": engine,
        "name": "c",
        "tether": f"{folder}/tether",
        "mount": f"{folder}/mount",
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
    return ended.returncode


def test_a_job_says_that_its_container_engine_was_lost(tmp_path: Path, engine: str) -> None:
    assert run(tmp_path, engine) == runner.FAILED
    assert records.read_failure(str(tmp_path)).startswith("the container engine was lost: ")
    assert os.stat(tmp_path / records.FAILURE).st_mode & 0o077 == 0
    assert records.FAILURE == runner.FAILURE


@pytest.mark.parametrize("answers", [[b"nonsense\r\n\r\n"], [OK, b"\r\n\r\n"], [OK, UPGRADED, b""]])
def test_an_engine_that_answers_nonsense_is_why_a_container_did_not_start(
    tmp_path: Path, answers: list[bytes]
) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "engine.sock"))
    listener.listen()
    listener.settimeout(WAIT_S)

    def serve() -> None:
        with listener:
            for answer in answers:
                _answer(listener, answer).close()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    assert run(tmp_path, f"{tmp_path}/engine.sock") == runner.FAILED
    serving.join(WAIT_S)
    assert records.read_failure(str(tmp_path)).startswith("the container did not start: ")


def test_an_attempt_without_a_failed_container_has_no_such_words(tmp_path: Path) -> None:
    assert records.read_failure(str(tmp_path)) == ""
