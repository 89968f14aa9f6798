"""A memory broker that cannot be started is tried again, and holds up no attempt without a pool."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from services.node_agent.memory import pools
from services.node_agent.memory.grants import HOST
from services.node_agent.memory.keeper import ATTEMPTS, Keeper
from services.node_agent.memory.pools import NO_ANSWER, Pools
from tests.memory_world import MIB, attempt, devices


async def test_a_broker_that_cannot_be_started_is_started_once_the_machine_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(tmp_path / "memory", devices({HOST: 64 * MIB}))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    opening = asyncio.create_task(keeper.open(()))
    done, _ = await asyncio.wait([opening], timeout=0.1)
    assert not done
    monkeypatch.undo()
    async with asyncio.timeout(30):
        await opening
    assert keeper.pid > 0
    await keeper.close()


async def test_an_attempt_without_a_pool_does_not_wait_for_the_broker_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr(pools, "RELEASE_S", 0.1)
    made = Pools(tmp_path, 64 * MIB)
    assert made.keeper is not None
    made.keeper.folder.mkdir()
    noted = {"pooled.1": attempt(tmp_path, "pooled.1")}
    (made.keeper.folder / ATTEMPTS).write_bytes(msgspec.json.encode(noted))
    made.adopt(["pooled.1", "plain.1"], ())
    async with asyncio.timeout(30):
        assert await made.let_go("plain.1") == {}
        assert await made.let_go("pooled.1") == {"pools": NO_ANSWER}
    await made.close()
