"""The server of resident weights as a process, its agent's side, and engines that speak GMS."""

import asyncio
import hashlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from services.node_agent.memory.gms.resident_weights import ResidentWeights, socket_name
from services.node_agent.memory.grants import Refusal
from tests.gms_agent import asked, exact, killed_server, owned, published, reading, serving
from tests.gms_world import Engine, admission, entry
from tests.memory_world import MIB, devices, memory_of, until

WRONG_CHECKPOINTS = 100


@pytest_asyncio.fixture
async def weights(tmp_path: Path) -> AsyncIterator[ResidentWeights]:
    async with serving(tmp_path) as made:
        yield made


async def test_a_second_engine_maps_what_the_first_one_loaded(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    path = entry(tmp_path).socket
    one, two = Engine(), Engine()
    assert await asked(one, "connect", path, "rw_or_ro") == ["connected", "rw", "False"]
    two.send("connect", path, "rw_or_ro")
    assert await asked(one, "load", 7, MIB, 3 * MIB) == ["loaded", str(6 * MIB)]
    assert weights.entries()[0].writer == "job.1"
    assert await asked(one, "commit") == ["committed"]
    assert await asyncio.to_thread(two.answer) == ["connected", "ro", "True"]
    assert await asked(two, "read") == ["read", "2"]
    assert await asked(two, "verify") == ["same", "True", "7", str(6 * MIB)]
    await until(lambda: weights.entries()[0].readers == ("job.1",), "no reader is listed")
    await exact(weights)
    one.kill()
    two.kill()


async def test_published_weights_stay_without_a_process_until_they_are_dropped(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    path = entry(tmp_path).socket
    await published(path, 3)
    await weights.dismiss("job.1")
    (found,) = weights.entries()
    assert (found.state, found.bytes, found.orphan) == ("COMMITTED", 6 * MIB, True)
    assert (found.tenant, found.model, found.written_by) == ("tenant", "model", "job.1")
    await weights.admit("m", admission(tmp_path, "job.2"))
    reader = await reading(path)
    assert await asked(reader, "verify") == ["same", "True", "3", str(6 * MIB)]
    reader.kill()
    await until(lambda: weights.entries()[0].readers == (), "the reader's lock stays")
    await weights.drop("m")
    assert (weights.entries(), memory_of(weights.pid)) == ([], {})
    assert not await asyncio.to_thread(os.path.exists, path)
    await exact(weights)


async def test_a_writer_that_dies_before_it_publishes_leaves_nothing(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    path = entry(tmp_path).socket
    await published(path, 1)
    writer = Engine()
    await asked(writer, "connect", path, "rw")
    assert owned(weights) == 0  # a writer begins with nothing
    await asked(writer, "load", 2, MIB)
    writer.kill()
    await until(lambda: weights.entries()[0].state == "EMPTY", "the layout was not discarded")
    assert owned(weights) == 0
    await exact(weights)


async def test_a_writer_waits_for_readers_and_gives_up_in_time(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    path = entry(tmp_path).socket
    await published(path, 1)
    reader, writer = await reading(path), Engine()
    assert await asked(writer, "connect", path, "rw", 50) == ["connected", "None", "True"]
    writer.send("connect", path, "rw", 20_000)
    await asyncio.sleep(0.05)
    state = await asked(reader, "ask", "get_lock_state_request")
    assert "waiting_writers=1" in state
    assert await asked(reader, "close") == ["closed"]
    assert await asyncio.to_thread(writer.answer) == ["connected", "rw", "False"]
    reader.kill()
    writer.kill()


async def test_the_state_is_told_without_a_lock(weights: ResidentWeights, tmp_path: Path) -> None:
    path = entry(tmp_path).socket
    await published(path, 1)
    engine = Engine()
    state = await asked(engine, "probe", path, "get_runtime_state_request")
    assert {"state=COMMITTED", "allocation_count=2", "committed=True"} <= set(state)
    events = await asked(engine, "probe", path, "get_event_history_request")
    assert events == ["answer", "rw_connected", "committed"]
    wrong = await asked(engine, "probe", path, "commit_request")
    assert wrong[:2] == ["failed", "RuntimeError"]
    engine.kill()


async def test_writers_free_list_and_describe_and_readers_may_not(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    path = entry(tmp_path).socket
    writer = Engine()
    await asked(writer, "connect", path, "rw")
    _, identity, *_ = await asked(writer, "ask", "allocate_request", "size=1", "tag=x")
    found = await asked(writer, "ask", "get_allocation_request", identity)
    assert found[1:4] == [identity, "size=1", f"aligned_size={2 * MIB}"]
    assert found[4:] == ["tag=x", "layout_slot=0"]
    assert await asked(writer, "ask", "free_allocation_request", identity) == [
        "answer",
        "success=True",
    ]
    gone = await asked(writer, "ask", "get_allocation_request", identity)
    assert gone[:2] == ["failed", "RuntimeError"]
    count = await asked(writer, "ask", "get_allocation_state_request")
    assert count == ["answer", "allocation_count=0"]
    assert (await asked(writer, "ask", "metadata_delete_request", "key=x"))[1] == "deleted=False"
    assert (await asked(writer, "ask", "metadata_get_request", "key=x"))[1] == "found=False"
    unknown = await asked(writer, "ask", "claim_persistent_allocation_request")
    assert "claim_persistent_allocation_request" in unknown and unknown[0] == "failed"
    assert (await asked(writer, "ask", "handshake_request", "lock_type=rw"))[0] == "failed"
    await asked(writer, "load", 1, MIB)
    await asked(writer, "commit")
    reader = await reading(path)
    for kind in ("commit_request", "allocate_request size=1"):
        assert "write" in await asked(reader, "ask", *kind.split())
    assert await asked(reader, "write_as_reader") == ["refused"]
    assert await asked(reader, "verify") == ["same", "True", "1", str(2 * MIB)]
    writer.kill()
    reader.kill()


async def test_memory_beyond_the_limit_is_refused_and_nothing_is_created(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    writer = Engine()
    await asked(writer, "connect", entry(tmp_path).socket, "rw")
    assert (await asked(writer, "load", 1, 30 * MIB))[0] == "loaded"
    answer = await asked(writer, "ask", "allocate_request", f"size={4 * MIB}")
    assert answer[0] == "failed" and str(30 * MIB) in answer and str(32 * MIB) in answer
    assert owned(weights) == 30 * MIB
    await exact(weights)
    await weights.limit_tenant("tenant", 0, 30 * MIB)
    refused = await asked(writer, "ask", "allocate_request", "size=1")
    assert {"tenant", str(30 * MIB)} <= set(refused)
    writer.kill()


async def test_a_full_device_makes_a_writer_wait_until_memory_is_free(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    big = entry(tmp_path, "big", limit=48 * MIB)
    await weights.serve(big)
    await weights.admit("big", admission(tmp_path, "job.2"))
    await published(big.socket, 1, 48 * MIB)
    writer = Engine()
    await asked(writer, "connect", entry(tmp_path).socket, "rw")
    writer.send("load", 2, 20 * MIB)
    await asyncio.sleep(0.3)
    assert owned(weights) == 48 * MIB
    await weights.drop("big")
    assert await asyncio.to_thread(writer.answer) == ["loaded", str(20 * MIB)]
    await exact(weights)
    writer.kill()


async def test_a_process_outside_of_the_attempts_gets_nothing(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    path = entry(tmp_path).socket
    await published(path, 1)
    await weights.dismiss("job.1")
    engine = Engine()
    refused = await asked(engine, "connect", path, "ro")
    assert refused[0] == "failed" and "attempt" in refused
    with pytest.raises(Refusal) as found:
        await weights.admit("m", admission(tmp_path, "job.3", "another"))
    assert found.value.reason == "tenant"
    assert (await asked(engine, "connect", path, "ro"))[0] == "failed"
    engine.kill()


async def test_a_dismissed_attempt_loses_its_lock_and_its_connection(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    path = entry(tmp_path).socket
    writer = Engine()
    await asked(writer, "connect", path, "rw")
    await asked(writer, "load", 1, MIB)
    await weights.dismiss("job.1")
    assert owned(weights) == 0
    assert (await asked(writer, "commit"))[0] == "failed"
    writer.kill()


def content_of(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()))


async def test_a_wrong_checkpoint_is_refused_every_time(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    """The replica's files differ by one bit, one byte more or less, or by a file."""
    chance = random.Random(1)
    shards = tmp_path / "shards"
    shards.mkdir()
    for number in range(3):
        (shards / f"{number}.safetensors").write_bytes(chance.randbytes(10_000))
    good = content_of(shards)
    resident = entry(tmp_path, "w", content=good)
    await weights.serve(resident)
    admitted = msgspec.structs.replace(admission(tmp_path, "good.1"), content=good)
    await weights.admit("w", admitted)
    await published(resident.socket, 1)
    engine = Engine()
    refused = named = 0
    for _ in range(WRONG_CHECKPOINTS):
        path = shards / f"{chance.randrange(3)}.safetensors"
        before = path.read_bytes()
        path.write_bytes(_damaged(before, chance))
        wrong = content_of(shards)
        path.write_bytes(before)
        with pytest.raises(Refusal) as found:
            await weights.admit("w", msgspec.structs.replace(admitted, key="x.1", content=wrong))
        refused += found.value.reason == "content"
        named += (await asked(engine, "named", resident.socket, *wrong))[0] == "failed"
    assert (refused, named) == (WRONG_CHECKPOINTS, WRONG_CHECKPOINTS)
    assert await asked(engine, "named", resident.socket, *good) == ["connected", "ro"]
    engine.kill()


def _damaged(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    match chance.randrange(4):
        case 0:
            return data[:-1]
        case 1:
            return data + b"\0"
        case 2:
            return data[:at] + data[at + 1 :] + data[at : at + 1] + b"x"
    return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]


async def test_a_drop_is_refused_while_engines_map_and_revokes_when_forced(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    path = entry(tmp_path).socket
    await published(path, 1)
    reader = await reading(path)
    with pytest.raises(Refusal) as found:
        await weights.drop("m")
    assert found.value.reason == "in-use"
    assert await asked(reader, "verify") == ["same", "True", "1", str(6 * MIB)]
    await weights.drop("m", force=True)
    assert (owned(weights), memory_of(weights.pid)) == (0, {})
    reader.send("verify")
    assert await asyncio.to_thread(reader.process.wait) == -signal.SIGBUS


async def test_a_socket_that_cannot_be_created_leaves_no_entry(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    missing = msgspec.structs.replace(entry(tmp_path, "n"), socket=f"{tmp_path}/none/n.sock")
    with pytest.raises(Refusal) as found:
        await weights.serve(missing)
    assert found.value.reason == "socket"
    assert [each.name for each in weights.entries()] == ["m"]


async def test_a_device_that_is_added_later_has_entries_too(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    late = entry(tmp_path, "late", device=7)
    with pytest.raises(Refusal, match="device 7 is unknown"):
        await weights.serve(late)
    weights.use(devices({7: 64 * MIB}))
    await weights.serve(late)
    await weights.admit("late", admission(tmp_path, "job.2"))
    await killed_server(weights)
    await published(late.socket, 1)
    assert weights.owned() == {"m": 0, "late": 6 * MIB}


def test_engines_look_for_sockets_under_the_gpu_s_id_and_the_use() -> None:
    assert socket_name("GPU-12", "weights") == "gms_GPU-12_weights.sock"
