"""A job that lies to the memory broker, sends garbage, floods it, or uses another job's token."""

import asyncio
import contextlib
import os
import random
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from libs.job.memory.broker_wire import Ended, Link
from services.node_agent.memory import broker
from services.node_agent.memory.admission import CONNECTIONS_OF_USER_MAX
from services.node_agent.memory.device_memory import HOST_DRIVER, Device
from services.node_agent.memory.grants import HOST
from services.node_agent.memory.keeper import Keeper
from services.node_agent.supervisor import records
from tests.memory_world import MIB, Holding, attempt, devices

CAPACITY = {0: 256 * MIB, HOST: 64 * MIB}


@pytest_asyncio.fixture
async def keeper(tmp_path: Path) -> AsyncIterator[Keeper]:
    made = Keeper(tmp_path / "memory", devices(CAPACITY))
    await made.open(())
    await made.admit(attempt(tmp_path))
    yield made
    await made.release("job.1")
    await made.close()


def connected(keeper: Keeper) -> Link:
    stream = socket.socket(socket.AF_UNIX)
    folder = os.open(keeper.folder, os.O_PATH)
    stream.connect(f"/proc/self/fd/{folder}/{broker.BROKER_SOCKET}")
    os.close(folder)
    stream.settimeout(5)
    return Link(stream, accepts=True)


def answer(link: Link) -> dict[str, object]:
    while (message := link.message()) is None:
        link.receive()
    return message


async def unharmed(keeper: Keeper, before: int) -> None:
    """Another job gets memory as before, and the broker is the same process."""
    holding = Holding(keeper.socket_path)
    assert (await asyncio.to_thread(holding.ask, "grant", 0, MIB))[0] == "granted"
    holding.kill()
    assert keeper.pid == before


async def test_a_token_of_another_job_gets_nothing(keeper: Keeper, tmp_path: Path) -> None:
    """The thief descends from another supervisor, also when it has the right token."""
    other = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    await keeper.admit(attempt(tmp_path, "victim.1", b"victim", pid=other.pid))
    thief = Holding(keeper.socket_path, "victim")
    assert await asyncio.to_thread(thief.ask, "grant", 0, MIB) == ["refused", "process"]
    thief.kill()
    other.kill()
    await asyncio.to_thread(other.wait)
    assert await keeper.release("victim.1")
    await unharmed(keeper, keeper.pid)


async def test_a_job_cannot_return_or_guess_what_another_one_holds(
    keeper: Keeper, tmp_path: Path
) -> None:
    await keeper.admit(attempt(tmp_path, "job.2", b"second"))
    owner, liar = Holding(keeper.socket_path), Holding(keeper.socket_path, "second")
    _, number, _ = await asyncio.to_thread(owner.ask, "grant", 0, MIB)
    assert (await asyncio.to_thread(liar.ask, "grant", 0, MIB))[0] == "granted"
    client = connected(keeper)
    client.send({"op": "return", "grant": int(number)})
    assert answer(client)["reason"] == "token"
    assert await asyncio.to_thread(owner.ask, "check") == ["contents", "True", str(2 * MIB)]
    owner.kill()
    liar.kill()
    assert await keeper.release("job.2")


async def test_a_job_that_returns_memory_but_keeps_it_has_nothing_left(keeper: Keeper) -> None:
    liar = await asyncio.to_thread(
        subprocess.run,
        [
            *(sys.executable, "-c"),
            "import os, sys\n"
            "from libs.job.memory.broker_client import BrokerClient\n"
            "client = BrokerClient(sys.argv[1], b'secret')\n"
            "kept = [client.grant(0, 32 << 20) for _ in range(2)]\n"
            "for each in kept: client.give_back(each.grant)\n"
            "print(sum(os.fstat(each.descriptor).st_blocks for each in kept))\n"
            "try: os.ftruncate(kept[0].descriptor, 1 << 20)\n"
            "except PermissionError: print('sealed')\n",
            keeper.socket_path,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert liar.stdout.split() == ["0", "sealed"]


@pytest.mark.parametrize("seed", range(20))
async def test_garbage_closes_only_the_connection_that_sent_it(keeper: Keeper, seed: int) -> None:
    chance = random.Random(seed)
    before = keeper.pid
    for _ in range(20):
        link = connected(keeper)
        body = chance.randbytes(chance.randrange(200))
        if chance.random() < 0.5:
            body = msgspec.msgpack.encode(
                chance.choice([[], 7, "x", {}, {"op": 1}, {"op": "grant"}, {1: 2}, [[[]]] * 9])
            )
        length = chance.choice([len(body), 0, 1, 1 << 31, broker.BURST])
        rights = [0] if chance.random() < 0.3 else []
        data = struct.pack("<I", length) + body
        socket.send_fds(link.stream, [data], rights)
        if chance.random() < 0.5:
            link.stream.shutdown(socket.SHUT_WR)
        link.close()
    await unharmed(keeper, before)
    assert len(os.listdir(f"/proc/{before}/fd")) < 20


async def test_a_flood_of_requests_is_refused_and_others_are_served(keeper: Keeper) -> None:
    before = keeper.pid
    link = connected(keeper)
    reasons = []
    for _ in range(5 * broker.BURST // 100):
        for _ in range(100):
            link.send({"op": "stats"})
        reasons += [answer(link)["reason"] for _ in range(100)]
    assert "rate" in reasons
    await unharmed(keeper, before)
    link.close()


async def test_a_job_that_reads_no_answers_is_cut_off(keeper: Keeper) -> None:
    before = keeper.pid
    link = connected(keeper)
    with pytest.raises(OSError):
        for _ in range(1_000_000):
            link.send({"op": "stats", "filler": "x" * 100})
    await unharmed(keeper, before)
    link.close()


async def test_a_flood_of_connections_is_bounded(keeper: Keeper) -> None:
    links = []
    for _ in range(CONNECTIONS_OF_USER_MAX + 50):
        links.append(connected(keeper))
    closed = 0
    # The last one first: its answer says that all others were accepted before it.
    for link in reversed(links):
        try:
            link.send({"op": "stats"})
            answer(link)
        except (Ended, OSError):
            closed += 1
    assert closed == 50
    for link in links:
        link.close()
    await unharmed(keeper, keeper.pid)


async def test_more_than_the_pool_is_refused_before_anything_is_created(keeper: Keeper) -> None:
    holding = Holding(keeper.socket_path)
    assert await asyncio.to_thread(holding.ask, "grant", 0, 1 << 62) == ["refused", "size"]
    for _ in range(32):
        assert (await asyncio.to_thread(holding.ask, "grant", 0, 2 * MIB))[0] == "granted"
    assert await asyncio.to_thread(holding.ask, "grant", 0, 1) == ["refused", "quota"]
    assert await asyncio.to_thread(holding.ask, "grant", 5, 1) == ["refused", "device"]
    holding.kill()


def note(job_dir: str, container_id: str) -> None:
    """Note the id of the attempt's container, as the runner does."""
    Path(job_dir, records.CONTAINER).write_text(container_id)


def removed(group: Path) -> None:
    """Remove the group once its process has ended."""
    for _ in range(200):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.01)


@contextlib.contextmanager
def container(process: int) -> Iterator[str]:
    """A control group as an engine names it, with this process in it. Skips where none is made."""
    name = secrets.token_hex(32)
    for root in ("/sys/fs/cgroup/freezer", "/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
        group = Path(root, f"docker-{name}.scope")
        try:
            group.mkdir()
            (group / "cgroup.procs").write_text(str(process))
        except OSError:
            continue
        try:
            yield name
        finally:
            os.kill(process, signal.SIGKILL)
            removed(group)
        return
    pytest.skip("no control group can be made here")


@pytest.mark.parametrize("noted", ["own", "another", "damaged"])
async def test_a_process_of_a_container_is_known_by_its_control_group_alone(
    keeper: Keeper, tmp_path: Path, noted: str
) -> None:
    other = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    boxed = attempt(tmp_path, "boxed.1", b"boxed", pid=other.pid)
    await keeper.admit(boxed)
    holding = Holding(keeper.socket_path, "boxed")
    with container(holding.process.pid) as name:
        wrong = {"own": name, "another": secrets.token_hex(32), "damaged": "docker"}[noted]
        note(boxed.job_dir, wrong)
        said = await asyncio.to_thread(holding.ask, "grant", 0, MIB)
        assert said[0] == ("granted" if noted == "own" else "refused")
    holding.process.communicate()
    other.kill()
    await asyncio.to_thread(other.wait)
    assert await keeper.release("boxed.1")


async def test_a_token_gives_nothing_after_the_release_of_its_attempt(keeper: Keeper) -> None:
    holding = Holding(keeper.socket_path)
    assert (await asyncio.to_thread(holding.ask, "grant", 0, MIB))[0] == "granted"
    assert await keeper.release("job.1")
    again = Holding(keeper.socket_path)
    for each in (holding, again):
        assert await asyncio.to_thread(each.ask, "grant", 0, MIB) == ["refused", "token"]
        each.kill()


async def test_a_purpose_cannot_carry_control_characters_to_a_terminal(keeper: Keeper) -> None:
    holding = Holding(keeper.socket_path)
    holding.send("grant", 0, MIB, "\x1b]0;owned\x07")
    assert await asyncio.to_thread(holding.answer) == ["refused", "purpose"]
    holding.kill()


async def test_a_job_cannot_reach_devices_by_the_node_s_numbers(
    keeper: Keeper, tmp_path: Path
) -> None:
    """Device 0 of the job is device 1 of the node; the node's own numbers mean nothing to it."""
    keeper.use([*keeper.devices.values(), Device(1, HOST_DRIVER, 64 * MIB)])
    mapped = msgspec.structs.replace(
        attempt(tmp_path, "mapped.1", b"mapped"), limits={1: 4 * MIB}, ordinals=(1,)
    )
    await keeper.admit(mapped)
    holding = Holding(keeper.socket_path, "mapped")
    for device in (1, 2, -1, -2, 1 << 40):
        said = await asyncio.to_thread(holding.ask, "grant", device, MIB)
        assert said == ["refused", "device"]
    assert (await asyncio.to_thread(holding.ask, "grant", 0, MIB))[0] == "granted"
    async with asyncio.timeout(10):
        while ("mapped.1", 1) not in keeper.owned():
            await asyncio.sleep(0.01)
    holding.kill()
    assert await keeper.release("mapped.1")
