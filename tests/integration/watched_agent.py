"""An agent's job directories in a process of their own, which a test can stop as a whole.

Run as `python watched_agent.py STATE_DIR HOME LEASE_S IGNORE LIMITS COMMAND...`. HOME and LIMITS
are JSON. It starts one job and prints its processes as JSON.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from libs.common.model import AttemptRef, JobId
from services.node_agent.core.observations import Observation, ProcessStarted
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.directories.protocol import Launch
from services.node_agent.supervisor import records
from services.node_agent.supervisor.lease import boottime_ns


async def main() -> None:
    state_dir, home, lease_s, ignore, limits, *command = sys.argv[1:]
    seen: list[Observation] = []
    jobs = JobDirectories(Path(state_dir), home=json.loads(home))
    await jobs.start(seen.append)
    jobs.extend_lease(boottime_ns() + 60_000_000_000)
    launch = Launch(
        ref=AttemptRef(JobId("j"), 1), rank=0, argv=tuple(command),
        env={"PATH": os.environ["PATH"]}, workdir=state_dir, stdin=False,
        output_limit_bytes=1 << 20, ignore_lease=ignore == "1", gpus=(), seq=1,
        limits=json.loads(limits),
    )  # fmt: skip
    await jobs.launch(launch)
    while not any(isinstance(each, ProcessStarted) for each in seen):
        await asyncio.sleep(0.005)
    identity = records.read_identity(str(jobs.jobs_dir / "j.1"))
    assert identity is not None
    deadline_ns = boottime_ns() + int(float(lease_s) * 1e9)
    jobs.replace_lease(deadline_ns)
    shown = {
        "agent": os.getpid(),
        "zygote": jobs.supervisors._zygote.pid,
        "supervisor": identity["pid"],
        "job": identity["job_pid"],
        "watchdog": jobs.watchdog.pid,
        "deadline_ns": deadline_ns,
    }
    print(json.dumps(shown), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
