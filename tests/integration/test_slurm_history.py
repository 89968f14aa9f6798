"""sacct over a gateway and the archive: jobs that left the live state are listed from facts."""

import asyncio
from pathlib import Path

import pytest

from libs.cli.slurm import ended_jobs, sacct
from libs.common.folds import job_fold
from libs.common.transport.log_memory import MemoryStream
from libs.common.transport.snapshot_store import MemorySnapshots
from tests.integration.gateway_world import KEY, World, gateway_world
from tests.integration.test_gateway_archive import archived

FORMAT = "--format=JobID,JobName,User,State,NodeList,ExitCode"


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (job_fold, ended_jobs):
        monkeypatch.setattr(module, "ENDED_JOBS_KEPT", 1)


async def listed(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> list[str]:
    monkeypatch.setenv("MUSTER_URL", world.url)
    monkeypatch.setenv("MUSTER_API_KEY", KEY)
    capsys.readouterr()
    assert await asyncio.to_thread(sacct.main, ["-n", "-P", FORMAT, *words]) == 0
    return capsys.readouterr().out.splitlines()


async def test_jobs_that_left_the_live_state_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_PROFILE", str(tmp_path / "none.json"))
    stream = MemoryStream()
    async with gateway_world(tmp_path, stream, MemorySnapshots()) as world:
        await world.writers.begin_term()
        await world.writers.register("n1")
        ids = [await world.run_to("completed", name=f"job-{number}") for number in range(3)]
        lines = [f"{job}|job-{number}|tests|COMPLETED|n1|0:0" for number, job in enumerate(ids)]
        async with archived(world, stream, tmp_path):
            for job in ids[:2]:
                await world.ask("GET", f"/v1/jobs/{job}", 410)
            assert await listed(world, monkeypatch, capsys, "-j", ",".join(ids)) == [
                lines[2],
                *lines[:2],
            ]
            assert sorted(await listed(world, monkeypatch, capsys, "-a")) == sorted(lines)
            future = ("-a", "-S", "now+1hour", "-E", "now+2hours")
            assert await listed(world, monkeypatch, capsys, *future) == []
