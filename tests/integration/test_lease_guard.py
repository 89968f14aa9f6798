"""A supervisor that is itself stopped is overruled by its agent before the lease ends."""

import asyncio
import os
import signal
from pathlib import Path

from libs.common.model import AttemptRef, JobId
from services.node_agent.job_directories import JobDirectories
from services.node_agent.observations import Observation, ProcessExited, ProcessStarted
from services.node_agent.supervision import processes, records
from services.node_agent.supervision.lease import boottime_ns
from services.node_agent.supervision_protocol import Launch

LEASE_NS = 3_000_000_000
WAIT_S = 20


async def test_a_stopped_supervisor_does_not_keep_its_job_alive_beyond_the_lease(tmp_path: Path) -> None:
    seen: list[Observation] = []
    jobs = JobDirectories(tmp_path / "node")
    await jobs.start(seen.append)
    try:
        deadline_ns = boottime_ns() + LEASE_NS
        jobs.extend_lease(deadline_ns + 600_000_000_000)
        jobs.replace_lease(deadline_ns)
        env = {"PATH": os.environ["PATH"]}
        command = ("/bin/sh", "-c", "sleep 60")
        ref = AttemptRef(JobId("j"), 1)
        await jobs.launch(
            Launch(
                ref=ref, rank=0, argv=command, env=env, workdir=str(tmp_path), stdin=False,
                output_limit_bytes=1 << 20, ignore_lease=False, gpus=(), seq=1,
            )
        )  # fmt: skip
        await until(seen, ProcessStarted)
        identity = records.read_identity(str(tmp_path / "node" / "jobs" / "j.1"))
        assert identity is not None
        os.kill(identity["pid"], signal.SIGSTOP)
        await until(seen, ProcessExited)
        found = processes.process(identity["job_pid"])
        assert found is None or found.state in "ZX"
        assert boottime_ns() < deadline_ns
    finally:
        await jobs.close()


async def until(seen: list[Observation], kind: type[Observation]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not any(isinstance(one, kind) for one in seen):
            await asyncio.sleep(0.005)
