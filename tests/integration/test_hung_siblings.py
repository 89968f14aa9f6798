"""A memory broker or weight server that hangs stops neither the agent nor what it restores.

The hung process is the real one, stopped by a signal, or a stand-in that listens and never reads.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from libs.common.errors import Refused
from libs.common.model import JobSpec
from services.node_agent.memory import control_link
from services.node_agent.memory import keeper as keeper_module
from services.node_agent.memory.broker import CONTROL_SOCKET
from services.node_agent.memory.gms import resident_weights
from services.node_agent.memory.gms.resident_weights import ResidentWeights
from services.node_agent.memory.gms.state import Change
from services.node_agent.memory.grants import HOST
from services.node_agent.memory.keeper import Keeper
from tests.gms_agent import asked, published, reading, serving
from tests.gms_world import DEVICES, entry
from tests.memory_world import MIB, Holding, attempt, devices, until

CAPACITY = {0: 128 * MIB, HOST: 64 * MIB}
# More messages than the kernel keeps for a process that does not read.
MANY = 2_000
# The event loop must never wait as long for a process that hangs.
FREEZE_S = 2.0
# Much less than a broker may take to open devices.
SOON_S = 5.0
# It listens at both control sockets and never reads. Its child keeps the sockets open when it is
# killed, like a process that cannot end because a call of a driver does not return.
HUNG = """
import os, socket, sys, time
folder, listeners = sys.argv[-2] if len(sys.argv) > 4 else sys.argv[-1], []
for name in ("control.sock", "resident.sock"):
    if os.path.exists(f"{folder}/{name}"):
        os.unlink(f"{folder}/{name}")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/{name}")
    listener.listen(64)
    listeners.append(listener)
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), file=open(f"{folder}/child", "w"), flush=True)
time.sleep(120)
"""


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ping ten times a second. It comes before the fixtures whose pings it makes faster."""
    monkeypatch.setattr(control_link, "PING_S", 0.1)


@pytest.fixture
def hung_program(tmp_path: Path) -> str:
    """Return a program that stands in for Python and starts a process that hangs."""
    made = tmp_path / "hung.py"
    made.write_text(f"#!{sys.executable}\n{HUNG}")
    made.chmod(0o755)
    return str(made)


@pytest_asyncio.fixture
async def keeper(tmp_path: Path) -> AsyncIterator[Keeper]:
    (tmp_path / "m").mkdir()
    made = Keeper(tmp_path / "m", devices(CAPACITY))
    await made.open(())
    await made.admit(attempt(tmp_path))
    yield made
    with contextlib.suppress(ProcessLookupError):
        os.kill(made.pid, signal.SIGKILL)
    made.attempts.clear()
    await made.close()
    kill_child(tmp_path / "m")


@pytest_asyncio.fixture
async def weights(tmp_path: Path) -> AsyncIterator[ResidentWeights]:
    async with serving(tmp_path) as made:
        yield made
    kill_child(tmp_path / "resident")


def kill_child(folder: Path) -> None:
    """Kill the child of a stand-in, which keeps its sockets open."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((folder / "child").read_text()), signal.SIGKILL)


async def answer_of(holding: Holding, *words: object) -> list[str]:
    return await asyncio.to_thread(holding.ask, *words)


async def test_messages_to_a_stopped_broker_wait_without_stopping_the_event_loop(
    keeper: Keeper,
) -> None:
    os.kill(keeper.pid, signal.SIGSTOP)
    began_s = time.monotonic()
    keeper.use(devices(dict.fromkeys(range(10, 10 + MANY), MIB)))
    assert time.monotonic() - began_s < FREEZE_S
    os.kill(keeper.pid, signal.SIGCONT)
    await until(lambda: len(keeper.answers) == MANY + len(CAPACITY), "a message was lost")
    assert keeper.restarts == 1


async def test_attempt_is_not_admitted_by_a_broker_that_hangs_since_it_opened_the_devices(
    keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert JobSpec(command=()).start_s > 2 * keeper_module.DEVICE_AGAIN_S
    monkeypatch.setattr(keeper_module, "DEVICE_AGAIN_S", 0.5)
    os.kill(keeper.pid, signal.SIGSTOP)
    late = attempt(tmp_path, "job.2", b"other")
    async with asyncio.timeout(SOON_S):
        with pytest.raises(Refused, match="gives no answer about device 0 within"):
            await keeper.admit(late)
    assert "job.2" not in keeper.attempts
    os.kill(keeper.pid, signal.SIGCONT)
    monkeypatch.undo()
    await keeper.admit(late)
    assert "job.2" in keeper.attempts and keeper.restarts == 1
    await keeper.release("job.2")


async def test_attempt_waits_longer_for_a_broker_that_has_not_opened_its_devices_yet(
    soon: None,
    keeper: Keeper,
    hung_program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper_module, "DEVICE_AGAIN_S", 0.0)
    python = sys.executable
    monkeypatch.setattr(sys, "executable", hung_program)
    first = keeper.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: keeper.restarts == 2, "the stand-in was not started")
    monkeypatch.setattr(sys, "executable", python)
    await keeper.admit(attempt(tmp_path, "job.2", b"other"))
    assert keeper.restarts == 3 and keeper.pid != first
    await keeper.release("job.2")


async def test_broker_that_hangs_while_grants_are_restored_is_replaced_and_no_grant_is_lost(
    soon: None,
    keeper: Keeper,
    hung_program: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    holding = Holding(keeper.socket_path)
    assert (await answer_of(holding, "grant", 0, 4 * MIB))[0] == "granted"
    python = sys.executable
    monkeypatch.setattr(sys, "executable", hung_program)
    first = keeper.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: keeper.restarts == 2, "the stand-in was not started")
    monkeypatch.setattr(sys, "executable", python)
    await until(lambda: keeper.pid != first, "the hung broker was not replaced")
    assert keeper.restarts == 3
    assert await answer_of(holding, "stats") == ["stats", str(4 * MIB)]
    assert await answer_of(holding, "check") == ["contents", "True", str(4 * MIB)]
    holding.kill()
    assert "does not answer: it is killed and replaced" in caplog.text


async def test_broker_whose_socket_accepts_no_connection_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    with full_listener(folder / CONTROL_SOCKET):
        keeper = Keeper(folder, devices(CAPACITY))
        async with asyncio.timeout(30):
            await keeper.open(())
        assert keeper.restarts == 1
        await keeper.close()


@contextlib.contextmanager
def full_listener(path: Path) -> Iterator[None]:
    """Listen at a socket, and fill its queue of connections."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(str(path))
        yield


async def test_weight_server_that_hangs_while_weights_are_restored_is_replaced_and_keeps_them(
    soon: None,
    weights: ResidentWeights,
    hung_program: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = entry(tmp_path).socket
    await published(path, 5)
    reader = await reading(path)
    sibling, command = weights.sibling, weights.sibling.command
    sibling.command = (hung_program, *command[1:])
    first = weights.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: sibling.restarts == 2, "the stand-in was not started")
    sibling.command = command
    await until(lambda: weights.pid != first, "the hung server was not replaced")
    assert await asked(reader, "verify") == ["same", "True", "5", str(6 * MIB)]
    assert (await asked(reader, "connect", path, "ro"))[1] == "ro"
    assert (await asked(reader, "read"))[0] == "read"
    assert await asked(reader, "verify") == ["same", "True", "5", str(6 * MIB)]
    reader.kill()
    assert "has not answered" in caplog.text and "restart the machine" in caplog.text


async def test_next_agent_replaces_a_weight_server_that_hangs(
    soon: None, weights: ResidentWeights, tmp_path: Path
) -> None:
    await weights.close()
    os.kill(weights.pid, signal.SIGSTOP)
    again = ResidentWeights(tmp_path / "resident", "host", DEVICES)
    async with asyncio.timeout(30):
        await again.open(["job.1"])
    assert again.pid != weights.pid
    assert [(each.name, each.lost) for each in again.entries()] == [("m", True)]
    await again.dismiss("job.1")
    await again.drop("m")
    await again.close()


async def test_weight_server_that_answers_pings_is_kept_and_pings_change_nothing(
    soon: None, weights: ResidentWeights, tmp_path: Path
) -> None:
    await published(entry(tmp_path).socket, 1)
    first, changes = weights.pid, list[Change]()
    weights.changed = changes.append
    await asyncio.sleep(2 * control_link.PINGS_MAX * control_link.PING_S)
    assert (weights.pid, weights.sibling.restarts, changes) == (first, 1, [])
    assert [each.bytes for each in weights.entries()] == [6 * MIB]


async def test_commands_to_a_stopped_weight_server_end_in_time_and_the_server_is_replaced(
    soon: None, weights: ResidentWeights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await published(entry(tmp_path).socket, 1)
    monkeypatch.setattr(resident_weights, "ANSWER_S", 0.5)
    first, began_s = weights.pid, time.monotonic()
    os.kill(first, signal.SIGSTOP)
    asking = [asyncio.ensure_future(weights.dismiss(f"job.{number}")) for number in range(MANY)]
    await asyncio.sleep(0)
    assert time.monotonic() - began_s < FREEZE_S
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert {type(each) for each in found} == {TimeoutError}
    await until(lambda: weights.pid != first, "the stopped server was not replaced")
    assert [each.bytes for each in weights.entries()] == [6 * MIB]
