"""Weights, locks and bytes after the server, the agent, or both of them ended."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.node_agent.memory.device_memory import source_of
from services.node_agent.memory.gms import server
from services.node_agent.memory.gms.resident_weights import ResidentWeights
from services.node_agent.memory.gms.state import Lock, Opened, Serving, Session
from services.node_agent.memory.grants import Holder
from tests.gms_agent import asked, exact, killed_server, owned, published, reading, serving
from tests.gms_world import DEVICES, Engine, admission, entry
from tests.memory_world import MIB, until


@pytest_asyncio.fixture
async def weights(tmp_path: Path) -> AsyncIterator[ResidentWeights]:
    async with serving(tmp_path) as made:
        yield made


async def test_the_next_server_keeps_weights_locks_and_contents(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    path = entry(tmp_path).socket
    await published(path, 5)
    reader, writer = await reading(path), Engine()
    await killed_server(weights)
    await exact(weights)
    # The reader's connection broke, but it maps the weights: a writer must wait.
    assert (await asked(writer, "connect", path, "rw", 100))[1] == "None"
    assert await asked(reader, "verify") == ["same", "True", "5", str(6 * MIB)]
    assert (await asked(reader, "connect", path, "ro"))[1] == "ro"
    assert (await asked(reader, "read"))[0] == "read"
    assert await asked(reader, "verify") == ["same", "True", "5", str(6 * MIB)]
    await until(lambda: len(weights.entries()[0].readers) == 1, "the old lock stays")
    await killed_server(weights)
    reader.kill()
    assert (await asked(writer, "connect", path, "rw", 20_000))[1] == "rw"
    writer.kill()


async def test_a_writer_survives_no_server_but_its_memory_counts_until_it_lets_go(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    path = entry(tmp_path).socket
    writer, other = Engine(), Engine()
    await asked(writer, "connect", path, "rw")
    await asked(writer, "load", 1, MIB)
    await killed_server(weights)
    assert owned(weights) == 2 * MIB
    await exact(weights)
    assert await asked(writer, "verify") == ["same", "True", "1", str(2 * MIB)]
    assert (await asked(writer, "commit"))[0] == "failed"
    assert (await asked(other, "connect", path, "rw_or_ro", 100))[1] == "None"
    assert (await asked(writer, "connect", path, "rw_or_ro"))[1] == "rw"
    assert owned(weights) == 0
    await killed_server(weights)
    writer.kill()
    assert (await asked(other, "connect", path, "rw_or_ro", 20_000))[1] == "rw"
    other.kill()
    await exact(weights)


async def test_weights_of_an_agent_and_server_that_end_together_count_until_their_attempts_end(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    path = entry(tmp_path).socket
    await weights.limit_tenant("tenant", 0, 40 * MIB)
    await published(path, 1)
    reader = await reading(path)
    assert weights._task is not None
    weights._task.cancel()
    os.kill(weights.pid, signal.SIGKILL)
    await weights.close()
    again = ResidentWeights(tmp_path / "resident", "host", DEVICES)
    await again.open(["job.1"])
    (found,) = again.entries()
    assert (found.lost, found.bytes) == (True, 32 * MIB)
    assert (await asked(Engine(), "connect", path, "ro"))[0] == "failed"
    assert await asked(reader, "verify") == ["same", "True", "1", str(6 * MIB)]
    reader.kill()
    await again.dismiss("job.1")
    (found,) = again.entries()
    assert (found.lost, found.bytes, found.state) == (False, 0, "EMPTY")
    await again.admit("m", admission(tmp_path, "job.2"))
    await published(path, 2)
    await again.drop("m")
    await again.close()
    third = ResidentWeights(tmp_path / "resident", "host", DEVICES)
    await third.open(())
    assert third.entries() == []
    await third.close()


async def test_entries_of_ended_attempts_begin_empty_after_a_restart_of_the_node(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    await published(entry(tmp_path).socket, 1)
    assert weights._task is not None
    weights._task.cancel()
    os.kill(weights.pid, signal.SIGKILL)
    await weights.close()
    again = ResidentWeights(tmp_path / "resident", "host", DEVICES)
    await again.open(())
    (found,) = again.entries()
    assert (found.state, found.bytes, found.lost, found.attempts) == ("EMPTY", 0, False, ())
    await again.drop("m")
    await again.close()


async def test_a_server_without_agent_and_engine_ends_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that is shut down for good leaves no memory on its devices."""
    monkeypatch.setattr(server, "ALONE_NS", 10**8)
    monkeypatch.setattr(server, "LOOK_NS", 10**7)
    alone = server.Server(str(tmp_path), source_of("host"))
    engine = Session(1, "m", Lock.RO, Holder(os.getpid(), 1), "job.1")
    alone.store.add(DEVICES[0])
    alone.store.carry_out((Serving(entry(tmp_path)), Opened(engine)))
    running = asyncio.create_task(asyncio.to_thread(alone.run))
    await asyncio.sleep(0.3)
    assert not running.done()
    alone.store.residents.served["m"].sessions.clear()
    await asyncio.wait_for(running, 20)


async def test_weights_that_cannot_be_noted_are_served_and_dropped(
    weights: ResidentWeights, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (weights.folder / "residents.new").mkdir()
    await weights.dismiss("j.1")
    await weights.limit_tenant("tenant", 0, 40 * MIB)
    assert caplog.text.count("cannot note the weights on devices") == 2
    assert [each.tenant for each in weights.entries()] == ["tenant"]
    await weights.drop(entry(tmp_path).name)
    assert weights.entries() == [] and not (weights.folder / "residents.json").exists()
