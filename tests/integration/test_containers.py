"""Jobs in containers of a real engine (`make test-containers`).

The tests are skipped without an engine (MUSTER_CONTAINER_ENGINE, or Docker's socket).
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from agent_world import OWN_USER, World
from containers_world import (  # noqa: F401
    ENGINE,
    GONE_S,
    IMAGE,
    WHY_NOT,
    containers,
    ended,
    image,
    inside,
    on_engine,
    order,
    until,
)

from libs.common import facts as f
from libs.common.container_spec import ContainerSpec
from services.node_agent.directories.job_directories import LEASE
from services.node_agent.health import returning
from services.node_agent.runtimes import container, runner
from services.node_agent.runtimes.containers import INIT
from services.node_agent.supervisor import records
from services.node_agent.supervisor.lease import Lease, boottime_ns

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async for made in on_engine(tmp_path, OWN_USER):
        yield made


async def test_a_container_passes_output_environment_and_exit_code_through_and_leaves_a_receipt(
    world: World,
) -> None:
    script = 'echo "out $GREETING $MUSTER_RANK $PATH"; echo err >&2; ls /.muster-init; exit 5'
    finished, stdout, stderr = await ended(world, "j", script, env={"GREETING": "two\nlines"})
    assert (finished.exit_code, stderr) == (5, "err\n")
    assert stdout == (
        "out two\nlines 0 "
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n/.muster-init\n"
    )
    released = await world.said(f.JobReleased, "j")
    assert (released.checks["container"], released.checks["processes"]) == ("gone", "gone")
    assert await containers(world) == []


async def test_a_command_that_the_image_lacks_ends_as_a_shell_says_it(world: World) -> None:
    made = order(world, "j", "")
    await world.place(
        msgspec.structs.replace(
            made, spec=msgspec.structs.replace(made.spec, command=("nosuch", "x"))
        )
    )
    assert (await world.said(f.JobFinished, "j")).exit_code == 127
    assert (
        await world.output("j", stream="stderr")
    ).data == b"muster: the command nosuch was not found in the image\n"


async def test_a_death_by_a_signal_is_shown_as_shells_show_it(world: World) -> None:
    finished, _, _ = await ended(world, "j", "kill -9 $$")
    assert finished.exit_code == 137


async def test_input_reaches_the_command_to_its_end(world: World) -> None:
    await world.place(order(world, "j", "cat; echo over", stdin=True))
    await world.said(f.JobStarted, "j")
    await world.type("j", 0, b"typed\n", eof=True)
    await world.said(f.JobFinished, "j")
    assert (await world.output("j")).data == b"typed\nover\n"


async def test_much_output_comes_whole(world: World) -> None:
    script = (
        "dd if=/dev/zero bs=65536 count=64 2>/dev/null | tr '\\0' x | wc -c; head -c 60000 "
        "/dev/zero"
    )
    finished, stdout, _ = await ended(world, "j", script)
    assert finished.exit_code == 0 and len(stdout) == len("4194304\n") + 60_000


async def test_a_stop_is_heard_by_the_command_and_a_deaf_one_is_killed(world: World) -> None:
    await world.place(
        order(
            world,
            "heeds",
            "trap 'echo heard; exit 9' TERM; echo ready; while true; do sleep 0.05; done",
        )
    )
    await world.place(
        order(world, "deaf", "trap '' TERM; echo ready; while true; do sleep 0.07; done")
    )
    for job in ("heeds", "deaf"):
        while not (await world.output(job, wait_ms=1_000)).data:
            pass
    await world.scheduler.send(
        world.stop_order("heeds", grace_ms=8_000), world.stop_order("deaf", grace_ms=500)
    )
    finished = await world.said(f.JobFinished, "heeds")
    assert (finished.exit_code, finished.reason) == (9, "stopped")
    assert (await world.output("heeds")).data == b"ready\nheard\n"
    assert (await world.said(f.JobFinished, "deaf")).signal == signal.SIGKILL
    assert (await world.said(f.JobReleased, "deaf")).checks["container"] == "gone"
    await until(lambda: inside("0.07") == [])


async def test_an_image_that_is_not_to_be_had_ends_the_job_with_the_engine_s_words(
    world: World,
) -> None:
    await world.place(order(world, "j", "true", image="127.0.0.1:9/nobody/nothing:1"))
    finished = await world.said(f.JobFinished, "j")
    assert (finished.exit_code, finished.reason) == (125, "no_image")
    assert (
        finished.detail.startswith("image 127.0.0.1:9/nobody/nothing:1 cannot be pulled: ")
        and "127.0.0.1:9" in finished.detail[50:]
    )
    await world.said(f.JobReleased, "j")
    assert world.of("j") == ["job.finished", "job.released"]


async def test_without_an_engine_the_job_is_refused(world: World) -> None:
    world.agent.means.containers.setting = "/nowhere"
    await world.place(order(world, "j", "true"))
    assert (
        await world.said(f.JobRefused, "j")
    ).reason == "image: no container engine is on this node (MUSTER_CONTAINER_ENGINE)"


async def test_its_working_directory_is_the_host_s_where_the_host_has_it(
    world: World, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    _, stdout, _ = await ended(world, "j", "pwd; touch made", workdir=str(work))
    assert stdout == f"{work}\n" and (work / "made").exists()
    _, stdout, _ = await ended(world, "k", "pwd", workdir="/tmp/only/in/the/image")
    assert stdout == "/tmp/only/in/the/image\n"


async def test_a_job_says_in_its_container_that_its_work_is_saved(world: World) -> None:
    script = 'touch "$MUSTER_CHECKPOINT_FILE"; echo ready; while true; do sleep 0.05; done'
    await world.place(order(world, "j", script, container=ContainerSpec(user="1234:1234")))
    saved = await world.said(f.JobCheckpointed, "j")
    assert saved.job_id == "j"
    scratch = world.state_dir / "scratch" / "j.1"
    assert scratch.is_dir()
    await world.scheduler.send(world.stop_order("j", grace_ms=100))
    await world.said(f.JobReleased, "j")
    assert not scratch.exists()


async def test_bounds_are_the_container_s(world: World) -> None:
    script = "dd if=/dev/zero of=/dev/null bs=512M count=1"
    finished, _, stderr = await ended(world, "j", script, memory_bytes=64 << 20)
    assert finished.exit_code == 137
    assert "muster: out of host memory: the kernel ended processes of it at 64 MiB" in stderr


async def test_a_container_dies_with_its_supervisor_however_that_ends(world: World) -> None:
    await world.place(
        order(world, "j", "trap '' TERM HUP; echo ready; while true; do sleep 0.11; done")
    )
    while not (await world.output("j", wait_ms=1_000)).data:
        pass
    identity = records.read_identity(f"{world.state_dir}/jobs/j.1")
    assert identity is not None and await containers(world)
    os.kill(identity["pid"], signal.SIGKILL)
    assert (await world.said(f.JobFinished, "j")).reason == "supervisor_lost"
    assert (await world.said(f.JobReleased, "j")).checks["container"] == "gone"
    await until(lambda: inside("0.11") == [])


async def test_a_container_ends_with_the_lease_without_any_agent(world: World) -> None:
    await world.place(
        order(world, "j", "trap '' TERM; echo ready; while true; do sleep 0.13; done")
    )
    while not (await world.output("j", wait_ms=1_000)).data:
        pass
    await world.drop()
    lease = Lease(f"{world.state_dir}/{LEASE}")
    lease.replace(boottime_ns() + 4_000_000_000)
    await until(lambda: not runs(world))
    await world.begin()
    assert (await world.said(f.JobFinished, "j")).reason == "lease_expired"
    assert (await world.said(f.JobReleased, "j")).checks["container"] == "gone"


def runs(world: World) -> bool:
    name = f"muster-j.1-{sha256(f'{world.state_dir}/jobs/j.1'.encode()).hexdigest()[:8]}"
    try:
        return bool(runner.ask(ENGINE, "GET", f"/containers/{name}/json")["State"]["Running"])
    except OSError:
        return False


async def test_the_next_agent_finds_it_again_and_hears_its_end(world: World) -> None:
    await world.place(
        order(
            world,
            "j",
            "echo ready; while [ ! -e go ]; do sleep 0.05; done; exit 4",
            workdir=str(world.state_dir),
        )
    )
    while not (await world.output("j", wait_ms=1_000)).data:
        pass
    await world.drop()
    await world.begin()
    assert len(await containers(world)) == 1
    (world.state_dir / "go").touch()
    assert (await world.said(f.JobFinished, "j")).exit_code == 4
    assert (await world.said(f.JobReleased, "j")).checks["container"] == "gone"


async def test_container_without_an_attempt_is_removed_when_the_agent_begins(
    world: World,
) -> None:
    label = {container.LABEL: f"{world.state_dir}/jobs/gone.1"}
    body = {
        "Image": IMAGE,
        "Cmd": ["sleep", "600"],
        "Labels": label,
        "HostConfig": {"NetworkMode": "host"},
    }
    made = runner.ask(ENGINE, "POST", "/containers/create", body)["Id"]
    runner.ask(ENGINE, "POST", f"/containers/{made}/start")
    assert len(await containers(world)) == 1
    await world.drop()
    await world.begin()
    assert world.agent.means.containers.removing is not None
    await world.agent.means.containers.removing
    assert await containers(world) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a job another user")
async def test_container_runs_as_the_job_s_user_with_that_user_s_access_to_the_host(
    tmp_path: Path,
) -> None:
    closed, own = tmp_path / "closed", tmp_path / "own"
    (closed / "below").mkdir(parents=True)
    own.mkdir()
    closed.chmod(0o700)
    os.chown(own, 1, 1)
    async for world in on_engine(tmp_path, {"*": "daemon"}):
        _, stdout, _ = await ended(
            world, "j", "id -u; touch made; grep NoNewPrivs /proc/self/status", workdir=str(own)
        )
        assert stdout == "1\nNoNewPrivs:\t1\n" and (own / "made").stat().st_uid == 1
        assert list((world.state_dir / "mounts").iterdir()) == []
        finished, _, stderr = await ended(world, "k", "ls", workdir=str(closed / "below"))
        assert (finished.exit_code, stderr) == (
            125,
            f"muster: the container did not start: mount for {closed}/below: Permission denied\n",
        )


def test_the_init_was_built_of_its_source() -> None:
    folder = INIT.parent
    assert (
        subprocess.run(
            ["sha256sum", "-c", "--status", "init.sha256"], cwd=folder, check=False
        ).returncode
        == 0
    )


async def test_silent_engine_quarantines_the_device_until_it_answers(world: World) -> None:
    world.agent.state.release_ns = 300_000_000
    await world.place(
        order(world, "j", "while [ ! -e go ]; do sleep 0.05; done", workdir=str(world.state_dir))
    )
    await until(lambda: runs(world))
    world.agent.means.containers.setting = "/nowhere"
    (world.state_dir / "go").touch()
    released = await world.said(f.JobReleased, "j")
    assert released.checks["container"] == "not known: the container engine is gone"
    (fault,) = world.facts(f.GpuFaulted)
    assert (fault.reason, fault.detail) == (
        "quarantined",
        "processes are left: container not known: the container engine is gone",
    )
    world.closed("j")
    await asyncio.sleep(2 * returning.LOOK_S)
    assert world.facts(f.GpuRecovered) == []
    world.agent.means.containers.setting = ENGINE
    await world.until(lambda: len(world.facts(f.GpuRecovered)) == 1)
