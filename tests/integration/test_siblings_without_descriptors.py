"""An agent that has no descriptor left keeps its memory broker and weight servers.

The limit of open files of the test's own process is lowered, as if other parts of the agent had
used all descriptors.
"""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.node_agent.machine import processes
from services.node_agent.memory import control_link
from services.node_agent.memory.broker import CONTROL_SOCKET
from services.node_agent.memory.control_link import ControlLink
from services.node_agent.memory.grants import HOST
from services.node_agent.memory.keeper import CONNECT_AGAIN_S, Keeper
from tests.gms_agent import asked, published, reading, serving
from tests.gms_world import entry
from tests.memory_world import MIB, Holding, attempt, devices, until

CAPACITY = {0: 128 * MIB, HOST: 64 * MIB}
# The descriptors of input, output and errors: no other one can be opened.
NONE = 3
LISTENS = """
import socket, time
listener = socket.socket(socket.AF_UNIX)
listener.bind("{path}")
listener.listen()
print("listens", flush=True)
time.sleep(60)
"""
# Longer than the agent takes to start another process.
WHILE_S = 1.0


@contextlib.contextmanager
def limited(descriptors: int) -> Iterator[None]:
    """Let this process open no descriptor from this number on."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest_asyncio.fixture
async def keeper(tmp_path: Path) -> AsyncIterator[Keeper]:
    made = Keeper(tmp_path / "m", devices(CAPACITY))
    await made.open(())
    await made.admit(attempt(tmp_path))
    yield made
    with contextlib.suppress(ProcessLookupError):
        os.kill(made.pid, signal.SIGKILL)
    made.attempts.clear()
    await made.close()


async def test_agent_without_descriptors_connects_to_the_same_broker_later(
    keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    holding = Holding(keeper.socket_path)
    assert (await asyncio.to_thread(holding.ask, "grant", 0, 4 * MIB))[0] == "granted"
    broker = keeper.pid
    with limited(NONE):
        answer = await asyncio.to_thread(holding.ask, "grant", 0, 2 * MIB)
        assert answer[0] == "granted"
        await asyncio.sleep(WHILE_S)
        assert keeper.restarts == 1
    await until(lambda: len(keeper.descriptors) == 2, "the agent did not connect again")
    assert (keeper.pid, keeper.restarts) == (broker, 1)
    assert await asyncio.to_thread(holding.ask, "stats") == ["stats", str(6 * MIB)]
    holding.kill()
    await until(lambda: not keeper.grants, "the broker did not free the memory")
    assert "raise the agent's limit of open files" in caplog.text


async def test_agent_that_can_connect_but_not_take_all_grants_pauses_between_its_tries(
    keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    holding = Holding(keeper.socket_path)
    for _ in range(2):
        assert (await asyncio.to_thread(holding.ask, "grant", 0, 4 * MIB))[0] == "granted"
    with socket.socket() as other, contextlib.ExitStack() as stack:
        # Free are one descriptor and the two of the connection. Two grants need one more.
        last = os.dup(other.fileno())
        while last < max(keeper.descriptors.values()):
            stack.callback(os.close, last)
            last = os.dup(other.fileno())
        os.close(last)
        stack.enter_context(limited(last + 1))
        keeper._unlink()
        keeper._ended.set()
        await asyncio.sleep(WHILE_S)
    ends = caplog.text.count("the memory broker is away: too many descriptors")
    assert 2 <= ends <= WHILE_S / CONNECT_AGAIN_S + 1
    await until(lambda: keeper._arriving is None, "the agent did not connect again")
    assert (len(keeper.descriptors), keeper.restarts) == (2, 1)
    holding.kill()


async def test_agent_without_descriptors_connects_to_the_same_weight_server_later(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as weights:
        path = entry(tmp_path).socket
        await published(path, 5)
        reader, server = await reading(path), weights.pid
        with limited(NONE):
            weights.sibling.unlink()
            weights.sibling._ended.set()
            await asyncio.sleep(WHILE_S)
            assert weights.sibling.restarts == 1
        await weights.limit_tenant("tenant", 0, 32 * MIB)
        assert (weights.pid, weights.sibling.restarts) == (server, 1)
        assert await asked(reader, "verify") == ["same", "True", "5", str(6 * MIB)]
        reader.kill()


async def test_agent_without_access_to_a_socket_leaves_it_and_says_so_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(control_link, "WARN_AGAIN_S", 0.1)
    path = tmp_path / CONTROL_SOCKET
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:  # root gets an error too
        other.bind(str(path))
        finding = asyncio.create_task(control_link.find(tmp_path, CONTROL_SOCKET))
        await until(lambda: caplog.text.count("tries again; give the agent's user") > 1, "no log")
        assert path.exists() and "open files" not in caplog.text
    path.unlink()
    assert await finding is None


def test_connection_that_fails_keeps_no_descriptor(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / CONTROL_SOCKET))
        listener.listen()
        free = os.dup(listener.fileno())
        os.close(free)
        for count in range(2):
            with limited(free + count), pytest.raises(OSError, match="Too many open files"):
                ControlLink(tmp_path, CONTROL_SOCKET)
            again = os.dup(listener.fileno())
            os.close(again)
            assert again == free


async def test_process_that_only_has_the_pid_of_an_ended_broker_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = LISTENS.format(path=tmp_path / CONTROL_SOCKET)
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code), stdout=asyncio.subprocess.PIPE
    )
    assert other.stdout is not None and await other.stdout.readline() == b"listens\n"
    monkeypatch.setattr(processes, "is_living", lambda *holder: False)
    link = ControlLink(tmp_path, CONTROL_SOCKET)
    link.kill()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(other.wait(), 0.2)
    link.close()
    other.kill()
    await other.wait()


async def test_connection_on_which_nothing_has_arrived_yet_stays(keeper: Keeper) -> None:
    link = keeper._link
    assert link is not None
    keeper._read(link)
    assert keeper._link is link
