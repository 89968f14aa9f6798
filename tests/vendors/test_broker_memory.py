"""Vendors' memory behind the broker, over libraries built from C: devices found by uuid, memory
that a job's own driver maps, and a driver that is full, broken, absent or hangs.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from libs.common.errors import Refused
from libs.job.device.errors import DeviceError
from libs.job.memory.broker_client import BrokerClient, BrokerError
from services.node_agent.memory import grants as g
from services.node_agent.memory.device_memory import Device, VendorMemory, source_of
from services.node_agent.memory.keeper import Keeper
from services.node_agent.memory.node_memory import Hangs, NodeMemory, host
from tests.memory_world import MIB, attempt
from tests.vendors.fakes import Fake

WAIT_S = 20.0


def memory_of(fake: Fake) -> VendorMemory:
    library = fake.compiled_library()
    return VendorMemory(fake.kind.vendor(library), fake.kind.driver(library))


def devices_of(fake: Fake) -> list[Device]:
    """The fake's devices as an agent names them; the last one is not there."""
    found = [
        Device(each.ordinal, fake.name, each.memory_bytes, each.uuid, each.pci_bus)
        for each in fake.vendor().devices()
    ]
    return [*found, Device(7, fake.name, MIB, "GPU-none", "0000:ff:00.0")]


def opened(fake: Fake) -> tuple[NodeMemory, g.Books, list[Device]]:
    memory, books = NodeMemory(lambda name: memory_of(fake)), g.Books()
    return memory, books, devices_of(fake)


def test_devices_are_found_by_uuid_or_address_and_make_no_context(fake: Fake) -> None:
    memory, books, devices = opened(fake)
    second = Device(1, fake.name, devices[1].bytes, "unknown", devices[1].pci_bus.upper())
    assert memory.add(books, devices[0], "") == memory.add(books, second, "") == ""
    assert (books.granularity[0], books.revocable[0]) == (2 * MIB, False)
    piece = memory.create(1, 2 * MIB, ())
    assert os.fstat(piece.descriptor).st_size == 2 * MIB
    piece.free()
    assert fake.uses(0) == fake.uses(1) == 0


def test_a_device_that_the_driver_does_not_show_is_unusable(fake: Fake) -> None:
    memory, books, devices = opened(fake)
    assert "shows no device GPU-none" in memory.add(books, devices[-1], "")
    g.admit(books, g.Attempt("a.1", "t", b"A", {7: MIB}, "/a"))
    with pytest.raises(g.Refusal) as found:
        g.check(books, "a.1", 7, 1, "")
    assert (found.value.reason, "shows no device" in found.value.detail) == ("driver", True)


def test_a_full_device_refuses_with_the_driver_s_words(fake: Fake) -> None:
    memory, books, devices = opened(fake)
    memory.add(books, devices[0], "")
    fake.fail("create", fake.kind.full)
    with pytest.raises(g.Refusal) as found:
        memory.create(0, 2 * MIB, ())
    assert found.value.reason == "driver"
    assert fake.kind.steps["create"] in found.value.detail


def test_memory_that_cannot_be_exported_is_released_again(fake: Fake) -> None:
    memory, books, devices = opened(fake)
    memory.add(books, devices[0], "")
    fake.fail("export", fake.kind.lost)
    for _ in range(40):  # more than the device has
        with pytest.raises(g.Refusal):
            memory.create(0, 2 * MIB, ())
    fake.heal()
    memory.create(0, 64 * MIB, ()).free()


def test_memory_that_a_job_imported_outlives_the_broker_s_handle(fake: Fake) -> None:
    memory, books, devices = opened(fake)
    memory.add(books, devices[0], "")
    grant = g.Grant(1, "a.1", 0, 2 * MIB, "", None)
    memory.pieces[1] = memory.create(0, 2 * MIB, ())
    job, copy = fake.driver(), os.dup(memory.pieces[1].descriptor)
    handle = job.adopt(0, copy, 2 * MIB)
    memory.free(1)
    address = job.reserve(2 * MIB)
    job.map(address, 2 * MIB, handle, 0)
    memory.restore(grant, copy)
    memory.free(1)
    with pytest.raises(OSError):
        os.fstat(copy)


def test_a_release_that_fails_gives_the_memory_up(fake: Fake) -> None:
    memory, books, devices = opened(fake)
    memory.add(books, devices[0], "")
    memory.pieces[1] = memory.create(0, 2 * MIB, ())
    descriptor = memory.pieces[1].descriptor
    fake.fail("release", fake.kind.lost)
    memory.free(1)
    assert memory.pieces == {}
    with pytest.raises(OSError):
        os.fstat(descriptor)


@pytest.mark.parametrize("step", ["init", "create", "export", "release"])
def test_a_call_that_hangs_ends_the_broker_s_work(
    fake: Fake, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, books, devices = opened(fake)
    monkeypatch.setenv("MUSTER_DRIVER_CALL_S", "0.2")
    fake.fail(step, "hang")
    with pytest.raises(Hangs) as found:
        memory.add(books, devices[0], "")
        memory.pieces[1] = memory.create(0, 2 * MIB, ())
        memory.free(1)
    assert found.value.driver == fake.name
    closed = NodeMemory(lambda name: memory_of(fake))
    assert closed.add(g.Books(), devices[0], found.value.detail) == found.value.detail


def test_a_driver_without_a_library_is_unusable_and_a_word_that_is_none_too(tmp_path: Path) -> None:
    memory, books = NodeMemory(), g.Books()
    assert memory.add(books, host(MIB), "") == ""
    assert "gives no memory" in memory.add(books, Device(3, "metal", MIB), "")
    for name in ("cuda", "hip", "level_zero"):
        with contextlib.suppress(DeviceError):
            assert not source_of(name).revocable


# --- a real broker over a fake library ---

JOB = """
import os, sys
sys.path.insert(0, os.getcwd())
from libs.job.memory.broker_client import BrokerClient, BrokerError
client = BrokerClient(sys.argv[1], b"secret", answer_s=20)
for line in sys.stdin:
    try:
        got = client.grant(0, int(line))
        print("granted", got.bytes, os.fstat(got.descriptor).st_size, flush=True)
    except BrokerError as error:
        print(error.reason, error, flush=True)
"""


class Asking:
    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper

    async def begin(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", JOB, self.keeper.socket_path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    async def ask(self, size: int) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{size}\n".encode())
        return (await asyncio.wait_for(self.process.stdout.readline(), WAIT_S)).decode()

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


@pytest_asyncio.fixture
async def asking(
    fakes: dict[str, Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Asking]:
    fake = fakes["cuda"]
    monkeypatch.setenv("MUSTER_CUDA_LIBRARY", str(fake.path))
    monkeypatch.setenv("MUSTER_DRIVER_CALL_S", "0.5")
    keeper = Keeper(tmp_path / "memory", [host(64 * MIB), *devices_of(fake)])
    await keeper.open(())
    await keeper.admit(attempt(tmp_path))
    made = Asking(keeper)
    await made.begin()
    yield made
    await made.end()
    with contextlib.suppress(ProcessLookupError):
        os.kill(keeper.pid, signal.SIGKILL)
    keeper.attempts.clear()
    await keeper.close()


async def until_replaced(keeper: Keeper, pid: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while keeper.pid == pid:
            await asyncio.sleep(0.01)


async def test_a_job_gets_memory_of_a_device_from_the_broker(asking: Asking) -> None:
    assert await asking.ask(3 * MIB) == f"granted {4 * MIB} {4 * MIB}\n"
    assert asking.keeper.owned() == {("job.1", 0): 4 * MIB}
    await asking.end()
    await asyncio.sleep(0.1)
    assert asking.keeper.owned() == {("job.1", 0): 4 * MIB}  # a spare: it cannot be revoked
    assert await asking.keeper.release("job.1")
    assert asking.keeper.owned() == {}


async def test_a_driver_that_hangs_replaces_the_broker_which_does_not_call_it_again(
    asking: Asking, fakes: dict[str, Fake], tmp_path: Path
) -> None:
    keeper, first = asking.keeper, asking.keeper.pid
    assert (await asking.ask(2 * MIB)).startswith("granted")
    fakes["cuda"].fail("create", "hang")
    said = await asking.ask(2 * MIB)
    assert said.startswith("driver ") and "cuMemCreate" in said
    assert keeper.pid != first
    assert keeper.owned() == {("job.1", 0): 2 * MIB}
    with pytest.raises(Refused, match="cuMemCreate"):
        await keeper.admit(attempt(tmp_path, "job.2", b"other"))
    client = BrokerClient(keeper.socket_path, b"secret")
    with pytest.raises(BrokerError):  # the test itself is no process of the job
        await asyncio.to_thread(client.grant, g.HOST, MIB)
    assert await keeper.release("job.1")
    assert keeper.owned() == {}


async def test_the_next_broker_takes_over_memory_of_devices(asking: Asking) -> None:
    keeper, first = asking.keeper, asking.keeper.pid
    assert (await asking.ask(2 * MIB)).startswith("granted")
    os.kill(first, signal.SIGKILL)
    await until_replaced(keeper, first)
    assert (await asking.ask(62 * MIB)).startswith("granted")
    assert (await asking.ask(2 * MIB)).startswith("quota")
    assert await keeper.release("job.1")
    assert keeper.owned() == {}


async def test_an_attempt_on_an_unusable_device_is_refused(asking: Asking, tmp_path: Path) -> None:
    wanted = attempt(tmp_path, "job.2", b"other")
    with pytest.raises(Refused, match="shows no device GPU-none"):
        await asking.keeper.admit(g.Attempt("job.2", "t", wanted.token, {7: MIB}, wanted.job_dir))
