"""A service that is told to stop while it waits for the log ends at once: it holds nothing that
anyone waits for.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.natsserver import NatsServer

ENDS_WITHIN_S = 2.5
WAITS_S = 0.5
STARTS_WITHIN_S = 20
HANGS, WITHOUT_LOG = "a server that hangs", "a server without a log"
# The scheduler makes the log where there is none.
CASES = [(name, HANGS) for name in ("scheduler", "quota", "audit", "api_gateway", "node_agent")]
CASES += [(name, WITHOUT_LOG) for name in ("quota", "audit", "api_gateway", "node_agent")]
ESTABLISHED = "01"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.mark.parametrize(("name", "found"), CASES)
def test_a_stop_during_the_first_attach_ends_the_process_at_once(
    server: NatsServer, tmp_path: Path, name: str, found: str
) -> None:
    assert server.process is not None
    (tmp_path / "keys").write_text("")
    environment = {
        "PATH": os.environ["PATH"], "MUSTER_NATS": server.url,
        "MUSTER_STATE": str(tmp_path / "state"), "MUSTER_NODE_ID": "n1",
        "MUSTER_API_KEYS_FILE": str(tmp_path / "keys"), "MUSTER_GATEWAY_PORT": "0",
        "MUSTER_STREAM_BYTES": str(1 << 20),
    }  # fmt: skip
    (tmp_path / "state").mkdir()
    if found == HANGS:
        server.process.send_signal(signal.SIGSTOP)
    log = tmp_path / "service.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", f"services.{name}"], env=environment, stdout=said, stderr=said
        )
    try:
        _await_connection(server.port)
        time.sleep(WAITS_S)
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(ENDS_WITHIN_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
        server.process.send_signal(signal.SIGCONT)


def _await_connection(port: int) -> None:
    """Wait until a client has connected to the port.

    The kernel accepts a connection even for a server that hangs.
    """
    deadline, called = (
        time.monotonic() + STARTS_WITHIN_S,
        re.compile(rf":{port:04X} {ESTABLISHED} "),
    )
    while time.monotonic() < deadline:
        if called.search(Path("/proc/net/tcp").read_text()):
            return
        time.sleep(0.02)
    raise AssertionError("it never called the server")
