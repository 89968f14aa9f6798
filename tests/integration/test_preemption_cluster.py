"""A whole cluster: a training job saves its work, makes room for another one, and goes on from
where it was.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.cluster import Chaos, running
from tests.integration.test_files_cluster import shell_of

WAIT_S = 60
TRAIN = Path(__file__).parents[2] / "examples" / "train.py"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Chaos]:
    async with running(tmp_path, nodes=1, gpus=2) as found:
        yield found


async def until(cluster: Chaos, name: str, **wanted: object) -> dict[str, Any]:
    """The job, once it shows this."""
    job: dict[str, Any] = {}
    async with asyncio.timeout(WAIT_S):
        while not job or any(job[field] != value for field, value in wanted.items()):
            await asyncio.sleep(0.1)
            (job,) = await cluster.named(name)
    return job


async def test_a_job_saves_its_work_makes_room_and_goes_on(cluster: Chaos, tmp_path: Path) -> None:
    shell = shell_of(cluster, tmp_path)
    flags = (
        "--preemptible",
        "--checkpoint-signal",
        "USR1",
        "--checkpoint-grace",
        "10m",
        "-g",
        "2",
        "-p",
        "10",
    )
    train = (
        sys.executable,
        str(TRAIN),
        "--checkpoint",
        "work.json",
        "--steps",
        "120",
        "--step-s",
        "0.05",
        "--save-every",
        "30",
    )
    await shell.run("submit", "-J", "train", *flags, "-C", str(tmp_path), "--", *train)
    await until(cluster, "train", state="running", checkpoints=1)
    await shell.run("submit", "-J", "urgent", "-g", "2", "-p", "90", "--", "sleep", "1")
    await until(cluster, "urgent", state="completed")
    job = await until(cluster, "train", state="completed")
    assert (job["attempt"], job["preemptions"], job["retries_used"]) == (2, 1, 0)
    facts = await cluster.history(job["id"])
    kinds = [fact["kind"] for fact in facts]
    (end,) = [fact for fact in facts if fact["kind"] == "job.finished" and fact["attempt"] == 1]
    assert kinds.index("job.preempted") < kinds.index("job.requeued") and (
        end["signal"],
        end["reason"],
    ) == (signal.SIGTERM, "stopped")
    assert any(fact["asked"] for fact in facts if fact["kind"] == "job.checkpointed")
    out, _ = await shell.run("logs", "train")
    assert "goes on from step 0" not in out and "done after 120 steps" in out
    shown, _ = await shell.run("describe", "train")
    assert "1 time, last for" in shown and "Checkpoint:" in shown


async def test_two_jobs_take_turns_on_the_same_devices_and_lose_nothing(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    await shell.run("queue", "set", "shared", "--policy", "priority", "--time-slice", "1s")
    flags = (
        "--queue",
        "shared",
        "--preemptible",
        "--checkpoint-signal",
        "USR1",
        "--checkpoint-grace",
        "1m",
        "-g",
        "2",
    )
    for name in ("one", "two"):
        train = (
            sys.executable,
            str(TRAIN),
            "--checkpoint",
            f"{name}.json",
            "--steps",
            "60",
            "--step-s",
            "0.05",
            "--save-every",
            "30",
        )
        await shell.run("submit", "-J", name, *flags, "-C", str(tmp_path), "--", *train)
    jobs = [await until(cluster, name, state="completed") for name in ("one", "two")]
    assert all(
        job["preemptions"] >= 1
        and job["attempt"] == job["preemptions"] + 1
        and job["retries_used"] == 0
        for job in jobs
    )
    placed = []
    for job in jobs:
        rows = (await cluster.get(f"/v1/jobs/{job['id']}/history", limit="1000"))["facts"]
        placed += [(row["seq"], job["name"]) for row in rows if row["fact"]["kind"] == "job.placed"]
    assert [name for _, name in sorted(placed)][:4] == ["one", "two", "one", "two"]
    for job in jobs:
        out, _ = await shell.run("logs", job["name"])
        assert "goes on from step 0" not in out and "done after 60 steps" in out


async def test_devices_freed_for_a_job_stay_reserved_when_the_scheduler_dies(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    stubborn = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    await shell.run(
        "submit",
        "-J",
        "low",
        "--preemptible",
        "-g",
        "2",
        "-p",
        "10",
        "--grace",
        "8s",
        "--",
        "sh",
        "-c",
        stubborn,
    )
    await until(cluster, "low", state="running")
    await shell.run("submit", "-J", "urgent", "-g", "2", "-p", "90", "--", "sleep", "1")
    await until(cluster, "urgent", reserved=["node-1"])
    await shell.run("submit", "-J", "thief", "-g", "1", "-p", "80", "--", "sleep", "1")
    ticket = cluster.ticket("scheduler")
    assert ticket is not None
    os.kill(ticket.pid, signal.SIGKILL)
    urgent = await until(cluster, "urgent", state="completed")
    thief = await until(cluster, "thief", state="completed")
    assert urgent["placed_at"] < thief["placed_at"]


async def test_a_job_that_saves_and_exits_with_0_when_it_is_stopped_has_not_completed(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    saves = "trap 'echo saved; exit 0' TERM; echo > $0; while :; do sleep 0.1; done"
    for name, flags in (("late", ("-t", "3s")), ("unwanted", ())):
        script = ("sh", "-c", saves, str(tmp_path / name))
        await shell.run("submit", "-J", name, *flags, "--", *script)
        await shell.run("submit", "-J", f"after-{name}", "--after", f"afterok:{name}", "--", "true")
    async with asyncio.timeout(WAIT_S):
        while not (tmp_path / "unwanted").exists():
            await asyncio.sleep(0.1)
    await shell.run("cancel", "unwanted")
    assert (await until(cluster, "unwanted", state="cancelled"))["reason"] == "cancelled"
    assert (await until(cluster, "late", state="failed"))["reason"] == "time_limit"
    for name in ("late", "unwanted"):
        found = await until(cluster, f"after-{name}", state="cancelled")
        assert found["reason"] == "dependency_failed"
