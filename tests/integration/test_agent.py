"""The real agent over real supervisors and real processes; the test is its scheduler."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from libs.common import facts as f
from libs.common.errors import Fenced, Refused
from libs.common.model import AttemptRef, JobId, JobSpec
from services.node_agent.core import observations as o
from services.node_agent.core.actions import Record
from services.node_agent.machine import processes
from services.node_agent.recording import record
from services.node_agent.supervision import control_client
from services.node_agent.supervisor import records
from tests.integration.agent_world import NODE, WAIT_S, World, world_at


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path / "agent") as world:
        yield world


async def test_the_first_commit_registers_the_node(world: World) -> None:
    first = world.commits()[0]
    (fact,) = first.facts
    assert isinstance(fact, f.NodeRegistered)
    assert (first.writer, first.number, first.epoch, fact.incarnation, fact.simulated) == (
        "facts.node.n",
        1,
        1,
        1,
        True,
    )
    assert [gpu.uuid for gpu in fact.gpus] == ["GPU-n-0", "GPU-n-1"]


async def test_a_job_is_started_ended_and_released(world: World) -> None:
    await world.start("j", 'echo "$MUSTER_JOB_ID on $CUDA_VISIBLE_DEVICES"; exit 3')
    await world.said(f.JobReleased, "j")
    assert world.of("j") == ["job.started", "job.finished", "job.released"]
    (finished,) = world.facts(f.JobFinished)
    assert (finished.exit_code, finished.signal, finished.reason) == (3, 0, "exited")
    assert (await world.output("j")).data == b"j on GPU-n-0\n"
    await world.until(lambda: world.outputs.values == {"n.j.1.0.stdout": b"j on GPU-n-0\n"})


async def test_a_command_that_cannot_be_run_is_not_reported_started(world: World) -> None:
    await world.start("j", "")
    bad = JobSpec(command=("/no/such/command",), workdir=str(world.state_dir))
    await world.place(msgspec.structs.replace(world.order("k", ""), spec=bad))
    finished = await world.said(f.JobFinished, "k")
    assert (finished.exit_code, finished.reason) == (127, "exec_failed")
    assert "job.started" not in world.of("k")


async def test_a_stop_is_heard_and_a_kill_follows(world: World) -> None:
    await world.start("j", "trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.05; done")
    await world.start("k", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    assert (await world.output("j", wait_ms=5_000)).data == b"ready\n"
    assert (await world.output("k", wait_ms=5_000)).data == b"ready\n"
    await world.scheduler.send(world.stop_order("j"), world.stop_order("k", grace_ms=200))
    assert (await world.said(f.JobFinished, "j")).exit_code == 9
    assert (await world.said(f.JobFinished, "k")).signal == 9


async def test_a_stop_before_the_start_is_refused_for_ever(world: World) -> None:
    world.scheduler.seq = 0  # as in a log: the refusal has a later sequence than the orders
    order = world.order("j", "echo ran > mark")
    await world.scheduler.send(world.stop_order("j"))
    assert (await world.said(f.JobRefused, "j")).reason == "cancelled"
    await world.scheduler.send(order)
    await asyncio.sleep(0.3)
    assert world.of("j") == ["job.refused"]
    assert not (world.state_dir / "mark").exists()


async def test_a_request_that_no_process_can_have_is_refused(world: World) -> None:
    await world.scheduler.send(world.order("j", "echo \0"))
    assert "cannot be started" in (await world.said(f.JobRefused, "j")).reason
    assert not (world.state_dir / "jobs" / "j.1").exists()


async def test_a_job_outlives_its_agent_and_is_adopted(world: World) -> None:
    await world.start("j", "echo ready; while [ ! -e go ]; do sleep 0.02; done; exit 5")
    pid = (await world.said(f.JobStarted, "j")).pid
    await world.drop()
    assert processes.process(pid) is not None
    await world.begin()
    registered = world.facts(f.NodeRegistered)[-1]
    assert (registered.incarnation, registered.attempts) == (2, (AttemptRef(JobId("j"), 1),))
    assert registered.directory and {fact.directory for fact in world.facts(f.NodeRegistered)} == {
        registered.directory
    }
    (world.state_dir / "go").touch()
    assert (await world.said(f.JobFinished, "j")).exit_code == 5
    await world.said(f.JobReleased, "j")
    assert {fact.pid for fact in world.facts(f.JobStarted)} == {pid}


async def test_a_time_limit_counts_from_the_process_own_start_over_a_restart_of_the_agent(
    world: World,
) -> None:
    await world.start("j", "exec sleep 60", time_limit_s=2, grace_s=1)
    await world.said(f.JobStarted, "j")
    await asyncio.sleep(0.7)
    await world.drop()
    await world.begin()
    ended = await world.said(f.JobFinished, "j")
    assert (ended.signal, ended.reason) == (15, "time_limit")
    assert ended.run_ms > 1_000  # from the command on; its process began a little earlier


async def test_an_end_that_no_agent_saw_is_recorded_by_the_next(world: World) -> None:
    await world.start("j", "echo ready; while [ ! -e go ]; do sleep 0.02; done; exit 5")
    await world.said(f.JobStarted, "j")
    await world.end()
    (world.state_dir / "go").touch()
    exit_file = str(world.state_dir / "jobs" / "j.1")
    async with asyncio.timeout(WAIT_S):
        while records.read_exit(exit_file) is None:
            await asyncio.sleep(0.01)
    await world.begin()
    assert (await world.said(f.JobFinished, "j")).exit_code == 5
    await world.said(f.JobReleased, "j")
    world.closed("j")
    await world.until(lambda: not world.agent.state.attempts)
    await world.end()
    await world.begin()
    assert world.facts(f.NodeRegistered)[-1].attempts == ()


async def test_a_marker_without_a_supervisor_ends_and_is_never_started(world: World) -> None:
    await world.end()
    records.place_marker(str(world.state_dir / "jobs" / "j.1"), {"rank": 0})
    await world.begin()
    finished = await world.said(f.JobFinished, "j")
    assert (finished.exit_code, finished.signal, finished.reason) == (None, 0, "supervisor_lost")
    await world.said(f.JobReleased, "j")
    world.closed("j")
    await world.scheduler.send(world.order("j", "echo ran > mark"))
    await world.said(f.JobRefused, "j")  # its number may come again only after a restore
    assert world.of("j") == ["job.finished", "job.released", "job.refused"]
    assert not (world.state_dir / "mark").exists()


async def test_a_job_that_cannot_be_recorded_is_refused_and_others_still_start(
    world: World,
) -> None:
    """The gateway refuses such a working directory; earlier versions did not."""
    order = world.order("long", "true")
    spec = msgspec.structs.replace(order.spec, workdir="/" + "é" * 5_500)
    await world.place(msgspec.structs.replace(order, spec=spec))
    refused = await world.said(f.JobRefused, "long")
    assert "give a shorter working directory" in refused.reason
    assert not (world.state_dir / "jobs" / "long.1").exists()
    await world.start("next", "exit 3")
    assert (await world.said(f.JobFinished, "next")).exit_code == 3


async def test_job_whose_start_meets_a_bug_is_refused_and_others_still_start(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: object) -> None:
        raise RecursionError("too deep")

    with monkeypatch.context() as patched:
        patched.setattr(world.agent.means.pools, "hold", fails)
        patched.setattr(world.agent.means.pools, "let_go", fails)
        await world.start("first", "true")
        refused = await world.said(f.JobRefused, "first")
    assert "RecursionError" in refused.reason
    assert "the start of first.1 failed" in caplog.text
    assert "the preparation of first.1 could not be undone" in caplog.text
    await world.start("next", "exit 3")
    assert (await world.said(f.JobFinished, "next")).exit_code == 3


async def test_fact_that_cannot_be_stored_is_lost_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    agent = world.agent
    one, two = (gpu.uuid for gpu in agent.devices.inventory)
    good = [f.GpuErrorSeen(NODE, uuid, "xid 31", "none", "driver") for uuid in (one, two)]
    bad: list[f.NodeFact] = [
        f.GpuErrorSeen(NODE, one, "xid 32", "none", "driver", detail="w\udcff"),
        f.StandbyPromoted(JobId("j"), 1, NODE, 1, 1, took_ms=10**26),
    ]
    marks = (o.Mark("j.1", 1), o.Mark("k.1", 1))
    told: list[o.Observation] = []
    record(agent.writer, Record((good[0], *bad, good[1]), marks), told.append)
    await world.until(lambda: bool(told))
    stored = [entry.seq for entry in world.stream.entries][-1]
    assert told == [o.FactsStored(stored, marks[1:])]
    assert world.facts(f.GpuErrorSeen) == good
    assert "facts are lost (standby.promoted)" in caplog.text
    await world.start("next", "exit 3")
    assert (await world.said(f.JobFinished, "next")).exit_code == 3


async def test_a_lost_order_is_repaired_by_the_digest(world: World) -> None:
    order = world.order("j", "exit 4")
    world.scheduler.starts[AttemptRef(order.job_id, 1)] = order
    assert (await world.said(f.JobFinished, "j")).exit_code == 4
    assert world.scheduler.asked >= 1


async def test_a_lost_stop_is_repaired_by_the_digest(world: World) -> None:
    await world.start("j", "sleep 600")
    await world.said(f.JobStarted, "j")
    world.stop_order("j", grace_ms=500)
    assert (await world.said(f.JobFinished, "j")).reason == "stopped"


async def test_job_that_the_scheduler_closed_is_stopped(world: World) -> None:
    await world.start("j", "sleep 600")
    await world.said(f.JobStarted, "j")
    world.closed("j")
    assert (await world.said(f.JobFinished, "j")).reason == "stopped"


async def test_agent_asks_for_no_desired_state_while_the_digests_agree(world: World) -> None:
    await world.start("j", "sleep 600")
    await world.said(f.JobStarted, "j")
    asked = world.scheduler.asked
    await asyncio.sleep(0.6)
    assert world.scheduler.asked == asked


async def test_a_node_held_for_lost_kills_its_jobs_and_begins_again(world: World) -> None:
    await world.start("j", "trap '' TERM; while :; do sleep 0.05; done")
    pid = (await world.said(f.JobStarted, "j")).pid
    world.scheduler.incarnation, world.scheduler.verdict = 1, "lost"
    await world.until(lambda: len(world.facts(f.NodeRegistered)) == 2)
    assert processes.process(pid) is None or processes.process(pid).state in "ZX"  # type: ignore[union-attr]
    again = world.facts(f.NodeRegistered)[-1]
    assert (again.incarnation, again.attempts) == (2, ())
    world.closed("j")
    await world.start("k", "exit 6")
    assert (await world.said(f.JobFinished, "k")).exit_code == 6
    assert world.commits()[-1].epoch == 2


async def test_a_job_ends_with_the_lease_when_the_scheduler_does_not_answer(world: World) -> None:
    world.scheduler.lease_ms = 3_000
    await world.drop()
    (world.state_dir / "lease").unlink()
    await world.begin()
    await world.start("j", "sleep 600")
    await world.said(f.JobStarted, "j")
    world.scheduler.deaf = True
    assert (await world.said(f.JobFinished, "j")).reason == "lease_expired"


async def test_a_second_agent_of_the_same_name_fences_the_first(
    world: World, tmp_path: Path
) -> None:
    await world.start("j", "sleep 600")
    pid = (await world.said(f.JobStarted, "j")).pid
    other = world.make(tmp_path / "other")
    stop = asyncio.Event()
    life = asyncio.create_task(other.run(stop))
    await world.until(lambda: len(world.facts(f.NodeRegistered)) == 2)
    await world.scheduler.send(world.order("k", "true", incarnation=1))
    with pytest.raises(Fenced, match="another process wrote facts of node n"):
        await asyncio.wait_for(world.life, WAIT_S)
    async with asyncio.timeout(WAIT_S):
        while (found := processes.process(pid)) is not None and found.state not in "ZX":
            await asyncio.sleep(0.01)
    stop.set()
    await life


async def test_a_fenced_agent_that_cannot_ask_its_supervisors_kills_all_of_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_descriptor(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    await world.start("j", "sleep 600")
    await world.start("k", "sleep 600")
    pids = [(await world.said(f.JobStarted, job)).pid for job in "jk"]
    with monkeypatch.context() as patched:
        patched.setattr(control_client, "_exchange", no_descriptor)
        await world.agent._kill_all()
    async with asyncio.timeout(WAIT_S):
        while any(
            (found := processes.process(pid)) is not None and found.state not in "ZX"
            for pid in pids
        ):
            await asyncio.sleep(0.01)


async def test_two_agents_do_not_share_a_state_directory(world: World) -> None:
    with pytest.raises(Refused, match="another agent uses"):
        await world.make().run(asyncio.Event())
    assert not world.life.done()


async def test_output_is_followed_to_its_end(world: World) -> None:
    await world.start("j", "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two")
    assert (await world.output("j", wait_ms=5_000)).data == b"one\n"
    later = asyncio.create_task(world.output("j", offset=4, wait_ms=10_000))
    others = [asyncio.create_task(world.output("j", offset=4, wait_ms=10_000)) for _ in range(10)]
    assert (await world.output("j")).data == b"one\n"
    (world.state_dir / "go").touch()
    assert (await later).data == b"two\n"
    assert {(await other).data for other in others} == {b"two\n"}
    await world.said(f.JobReleased, "j")
    end = await world.output("j", offset=8, wait_ms=5_000)
    assert (end.offset, end.data, end.end, end.error) == (8, b"", True, "")


async def test_output_of_what_never_was_here_is_an_error(world: World) -> None:
    chunk = await world.output("unknown")
    assert chunk.end
    assert "no output of unknown attempt 1 on node n" in chunk.error
    assert "stdout, stderr" in (await world.output("unknown", stream="stdlog")).error


async def test_input_is_taken_by_offset_and_repeating_it_is_harmless(world: World) -> None:
    await world.start("j", "cat; exit 2", stdin=True)
    await world.said(f.JobStarted, "j")
    assert (await world.type("j", 0, b"hello ")).next_offset == 6
    assert (await world.type("j", 0, b"hello ")).next_offset == 6
    assert (await world.type("j", 6, b"world", eof=True)).next_offset == 11
    assert (await world.said(f.JobFinished, "j")).exit_code == 2
    assert (await world.output("j")).data == b"hello world"
    assert "no job unknown" in (await world.type("unknown", 0, b"x")).error


async def test_many_jobs_each_run_once(world: World) -> None:
    """The scheduler of this test closes jobs late, and may order a released one again meanwhile.
    The agent refuses that.
    """
    names = [f"j{n}" for n in range(30)]
    for name in names:
        order = await world.start(name, "echo $MUSTER_JOB_ID >> ran")
        await world.scheduler.send(order)
    for name in names:
        await world.said(f.JobReleased, name)
        world.closed(name)
    assert sorted((world.state_dir / "ran").read_text().split()) == sorted(names)
    for name in names:
        kinds = [kind for kind in world.of(name) if kind != "job.refused"]
        assert kinds == ["job.started", "job.finished", "job.released"]
    await world.until(lambda: not world.agent.tasks.work)


async def test_a_stopped_agent_leaves_no_fact_behind(world: World) -> None:
    await world.start("j", "exit 0")
    await world.said(f.JobStarted, "j")
    await world.end()
    with contextlib.suppress(FileNotFoundError):
        (world.state_dir / "go").unlink()
    await world.begin()
    await world.said(f.JobReleased, "j")
    assert [world.facts(f.JobReleased)[-1].node_id, world.facts(f.JobReleased)[-1].job_id] == [
        NODE,
        "j",
    ]
