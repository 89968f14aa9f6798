"""The memory broker as a process, the agent's keeper, and holders, killed at many moments."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from libs.job.memory.broker_client import BrokerClient, BrokerError
from services.node_agent.machine import processes
from services.node_agent.memory import broker
from services.node_agent.memory.grants import HOST, admit
from services.node_agent.memory.keeper import Keeper
from tests.memory_world import MIB, Holding, attempt, devices, memory_of, until

CAPACITY = {0: 128 * MIB, HOST: 64 * MIB}
SEEDS = int(os.environ.get("MUSTER_MEMORY_SEEDS", "6"))
STEPS = 14


@pytest_asyncio.fixture
async def keeper(tmp_path: Path) -> AsyncIterator[Keeper]:
    made = Keeper(tmp_path / "memory", devices(CAPACITY))
    await made.open(())
    await made.admit(attempt(tmp_path))
    yield made
    await kill_broker(made)
    made.attempts.clear()
    await made.close()


async def kill_broker(keeper: Keeper) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(keeper.pid, signal.SIGKILL)
        await until(lambda: not is_up(keeper), "a killed broker lives")


async def asked(holding: Holding, *words: object) -> list[str]:
    return await asyncio.to_thread(holding.ask, *words)


def is_up(keeper: Keeper) -> bool:
    found = processes.process(keeper.pid)
    return found is not None and found.state not in "ZX"


def owned(keeper: Keeper) -> int:
    return sum(keeper.owned().values())


async def exact(keeper: Keeper) -> None:
    """Bytes in use equal bytes owned, and the broker has one descriptor for each grant."""
    await until(
        lambda: (
            sum(memory_of(keeper.pid).values()) == owned(keeper)
            and len(memory_of(keeper.pid)) == len(keeper.grants) == len(memory_of(os.getpid()))
        ),
        "bytes in use differ from bytes owned",
    )


async def test_a_job_gets_memory_and_returns_it(keeper: Keeper) -> None:
    holding = Holding(keeper.socket_path)
    assert await asked(holding, "grant", 0, MIB) == ["granted", "1", str(2 * MIB)]
    assert await asked(holding, "grant", HOST, 3 * MIB) == ["granted", "2", str(4 * MIB)]
    assert await asked(holding, "check") == ["contents", "True", str(6 * MIB)]
    await exact(keeper)
    assert await asked(holding, "return", 1) == ["returned"]
    await until(lambda: owned(keeper) == 4 * MIB, "the grant was not returned")
    assert await asked(holding, "grant", 0, 65 * MIB) == ["refused", "size"]
    holding.kill()
    await until(lambda: owned(keeper) == 0, "the holder's death returned nothing")
    await exact(keeper)


async def test_a_process_outside_the_job_gets_nothing_for_its_token(keeper: Keeper) -> None:
    client = BrokerClient(keeper.socket_path, b"secret")
    with pytest.raises(BrokerError) as found:
        await asyncio.to_thread(client.grant, 0, MIB)
    assert found.value.reason == "process"  # the supervisor itself is not a process of the job


async def test_the_next_broker_knows_every_grant(keeper: Keeper) -> None:
    holding = Holding(keeper.socket_path)
    await asked(holding, "grant", 0, 4 * MIB)
    first = keeper.pid
    await kill_broker(keeper)
    await until(lambda: keeper.pid != first, "no broker was started")
    assert await asked(holding, "stats") == ["stats", str(4 * MIB)]
    assert await asked(holding, "check") == ["contents", "True", str(4 * MIB)]
    await exact(keeper)
    assert await asked(holding, "return", 1) == ["returned"]
    holding.kill()
    await until(lambda: owned(keeper) == 0, "nothing was returned")


async def test_the_next_agent_takes_over_the_broker_and_its_grants(
    keeper: Keeper, tmp_path: Path
) -> None:
    holding = Holding(keeper.socket_path)
    await asked(holding, "grant", 0, 4 * MIB)
    await keeper.close()
    again = Keeper(tmp_path / "memory", devices(CAPACITY))
    await again.open(["job.1"])
    assert (again.pid, owned(again)) == (keeper.pid, 4 * MIB)
    await exact(again)
    holding.kill()
    await until(lambda: owned(again) == 0, "nothing was returned")
    assert await again.release("job.1")
    await again.close()


async def test_grants_of_a_broker_and_agent_that_end_together_are_lost_and_counted(
    keeper: Keeper, tmp_path: Path
) -> None:
    holding = Holding(keeper.socket_path)
    await asked(holding, "grant", 0, 4 * MIB)
    assert keeper._task is not None
    keeper._task.cancel()
    await kill_broker(keeper)
    await keeper.close()
    again = Keeper(tmp_path / "memory", devices(CAPACITY))
    await again.open(["job.1"])
    assert owned(again) == 80 * MIB  # its whole pool, on both devices
    assert await asked(holding, "grant", 0, MIB) == ["refused", "lost"]
    assert await asked(holding, "check") == ["contents", "True", str(4 * MIB)]
    holding.kill()
    assert await again.release("job.1")
    assert owned(again) == 0
    await again.close()


async def test_a_release_frees_memory_that_a_process_still_maps(keeper: Keeper) -> None:
    holding = Holding(keeper.socket_path)
    await asked(holding, "grant", 0, 4 * MIB)
    assert await keeper.release("job.1")
    assert memory_of(keeper.pid) == {}
    await until(lambda: owned(keeper) == 0, "the keeper kept a grant")
    assert await asked(holding, "grant", 0, MIB) == ["refused", "token"]
    holding.send("check")
    assert await asyncio.to_thread(holding.process.wait) == -signal.SIGBUS


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_kill_9_at_any_step_loses_no_byte(keeper: Keeper, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    holdings = [Holding(keeper.socket_path) for _ in range(2)]
    current = keeper
    for _ in range(STEPS):
        place = chance.randrange(len(holdings))
        holding = holdings[place]
        holding.send(*chance.choice([("grant", 0, chance.randrange(1, 6 * MIB)), ("stats",)]))
        await asyncio.sleep(chance.random() * 0.004)
        match chance.randrange(5):
            case 0:
                await kill_broker(current)
            case 1:
                holding.kill()
                holdings[place] = Holding(current.socket_path)
                continue
            case 2:  # not while the broker is away: both at once have a test of their own
                await until(lambda: is_up(current), "no broker was started")  # noqa: B023
                # A broker answers holders once it has all grants of the one before.
                await asked(holdings[1 - place], "stats")
                await current.close()
                current = Keeper(tmp_path / "memory", devices(CAPACITY))
                await current.open(["job.1"])
        assert (await asyncio.to_thread(holding.answer))[0] in ("granted", "stats", "refused")
    held = 0
    for holding in holdings:
        word, good, size = await asked(holding, "check")
        assert (word, good) == ("contents", "True")
        held += int(size)
    await until(lambda: owned(current) == held, f"{owned(current)} owned, {held} held")
    await exact(current)
    for holding in holdings:
        holding.kill()
    await until(lambda: owned(current) == 0, "the holders' death returned too little")
    await exact(current)
    await current.release("job.1")
    await current.close()


def test_a_broker_without_an_agent_ends_once_its_attempts_have_ended(tmp_path: Path) -> None:
    made = broker.Broker(str(tmp_path))
    long_after_s = made.alone_since_s + broker.ORPHAN_S + 1
    assert not made.is_orphaned(made.alone_since_s)
    assert made.is_orphaned(long_after_s)
    admit(made.books, attempt(tmp_path))  # its supervisor is this process
    assert not made.is_orphaned(long_after_s)
    admit(made.books, msgspec.structs.replace(attempt(tmp_path), key="job.2", job_dir="/gone"))
    del made.books.attempts["job.1"]
    assert made.is_orphaned(long_after_s)
    made.public.close()
    made.control.close()
