"""An agent examines its part of a job, keeps the evidence, and tells a gateway of silence."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest_asyncio

from libs.common.diagnosis import evidence as e
from libs.common.diagnosis.evidence import DiagnosisAsk, NodeSeen, SilenceTold
from libs.common.diagnosis.rules import diagnose
from libs.common.model import JobId
from libs.common.subjects import ask_diagnosis, ask_node
from services.node_agent.diagnosis.launch_hook import HOOK
from services.node_agent.diagnosis.silence import Signs
from tests.integration.agent_world import NODE, WAIT_S, World, world_at

PROGRAM = """
import os, time
from pathlib import Path
def all_reduce(): time.sleep(60)
def lost(): time.sleep(60)
Path("ready" + os.environ["RANK"]).touch()
lost() if os.environ["RANK"] == "1" else all_reduce()
"""
# As PyTorch's flight recorder: a thread reads the rank's pipe and writes a dump.
RECORDER = (
    """
import os, threading
from pathlib import Path
folder, rank = Path(os.environ["MUSTER_CHECKPOINT_FILE"]).parent, os.environ["RANK"]
pipe = folder / f"nccl_pipe_rank_{rank}.pipe"
os.mkfifo(pipe)
def record():
    descriptor = os.open(pipe, os.O_RDWR)
    while os.read(descriptor, 100):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(b"0" * 1_000)
threading.Thread(target=record, daemon=True).start()
"""
    + PROGRAM
)
SCRIPT = """
for rank in 0 1 2; do
  RANK=$rank WORLD_SIZE=3 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=3 PYTHONPATH={hook} {python} train.py &
done
wait
"""


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path / "agent") as world:
        yield world


async def started(world: World, program: str = PROGRAM) -> None:
    (world.state_dir / "train.py").write_text(program)
    await world.start("j", SCRIPT.format(hook=HOOK, python=sys.executable))
    await world.until(lambda: all((world.state_dir / f"ready{n}").exists() for n in range(3)))
    await asyncio.sleep(0.1)  # a moment to be where they stay


async def asked(world: World, kept: bool = False, job: str = "j", dumps: bool = True) -> NodeSeen:
    data = msgspec.msgpack.encode(DiagnosisAsk(JobId(job), 1, kept, dumps))
    answer = await world.bus.request(ask_node(NODE, "diagnosis"), data, WAIT_S)
    return msgspec.msgpack.decode(answer, type=NodeSeen)


def signs(world: World) -> Signs:
    diagnosing = world.agent.devices.diagnosing
    attempt = diagnosing.state().attempts["j.1"]
    return diagnosing.signs(attempt)


async def test_the_evidence_of_a_job_names_the_rank_that_is_lost(world: World) -> None:
    assert "no evidence" in (await asked(world, kept=True)).error
    await started(world)
    seen = await asked(world)
    verdict = diagnose([seen])
    assert (verdict.kind, verdict.suspects[0].rank) == (e.APART, 1)
    assert [one.rank for one in seen.processes] == [0, 1, 2]
    assert seen.devices[0].uuid == "GPU-n-0"
    assert await asked(world, kept=True) == seen


async def test_a_job_that_is_not_there_or_ended_has_no_evidence(world: World) -> None:
    assert "does not run the attempt" in (await asked(world, job="other")).error
    answer = await world.bus.request(ask_node(NODE, "diagnosis"), b"?", WAIT_S)
    assert "not a DiagnosisAsk" in msgspec.msgpack.decode(answer, type=NodeSeen).error


async def test_a_gateway_is_told_of_a_job_without_progress(world: World) -> None:
    told: list[SilenceTold] = []

    async def on_told(subject: str, data: bytes) -> bytes:
        told.append(msgspec.msgpack.decode(data, type=SilenceTold))
        return b""

    await world.bus.subscribe(ask_diagnosis("*"), on_told)
    await started(world)
    diagnosing = world.agent.devices.diagnosing
    diagnosing.after_s = 1
    watch = asyncio.create_task(diagnosing.watch())
    try:
        await world.until(lambda: bool(told))
        assert (told[0].job_id, told[0].attempt) == ("j", 1) and told[0].silent_s >= 1
        # A diagnosis itself is no sign of progress.
        before = diagnosing.silence.signs["j.1"]
        await asked(world)
        await asyncio.sleep(1.1)
        assert diagnosing.silence.signs["j.1"] == before
    finally:
        watch.cancel()


async def test_dumps_of_flight_recorders_are_no_progress(world: World) -> None:
    await started(world, RECORDER)
    diagnosing = world.agent.devices.diagnosing
    diagnosing.after_s = 4
    watch = asyncio.create_task(diagnosing.watch())
    try:
        await world.until(lambda: diagnosing.silence.signs.get("j.1", ((), 0))[0] == signs(world))
        before = diagnosing.silence.signs["j.1"]
        seen = await asked(world, dumps=False)
        assert [one.moved_bytes for one in seen.processes] == [0, 0, 0]
        assert signs(world) == before[0]
        await asked(world)
        assert signs(world) != before[0]
        await asyncio.sleep(1.1)
        assert diagnosing.silence.signs["j.1"] == (signs(world), before[1])
    finally:
        watch.cancel()
