"""The jobs of `make scale`, which only pass time: each ends once, and starts once."""

import asyncio
import inspect

import pytest

from bench.scale.jobs import TimedJobs
from libs.common.model import AttemptRef, JobId
from services.node_agent.core.observations import Observation, ProcessExited, ProcessStarted
from services.node_agent.directories.protocol import AlreadyStarted, JobSupervisors, Launch

REF = AttemptRef(JobId("j1"), 1)
WITHIN_S = 5.0


def launch(*argv: str) -> Launch:
    return Launch(
        ref=REF,
        rank=0,
        argv=argv,
        env={},
        workdir="",
        stdin=False,
        output_limit_bytes=0,
        ignore_lease=False,
        gpus=(),
        seq=1,
    )


class Heard:
    """What the jobs reported."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []
        self.ended = asyncio.Event()

    def __call__(self, seen: Observation) -> None:
        self.seen.append(seen)
        if isinstance(seen, ProcessExited):
            self.ended.set()


async def test_a_job_starts_and_ends_by_itself() -> None:
    jobs, heard = TimedJobs(lambda: 7), Heard()
    await jobs.start(heard)
    await jobs.launch(launch("true"))
    await asyncio.wait_for(heard.ended.wait(), WITHIN_S)
    started, ended = heard.seen
    assert isinstance(started, ProcessStarted) and isinstance(ended, ProcessExited)
    assert ended.exit.exit_code == 0


async def test_a_stopped_job_ends_once_with_the_signal() -> None:
    jobs, heard = TimedJobs(lambda: 7), Heard()
    await jobs.start(heard)
    await jobs.launch(launch("sleep", "1000"))
    await jobs.stop(REF, 15, 100)
    await jobs.kill(REF)
    await asyncio.wait_for(heard.ended.wait(), WITHIN_S)
    await jobs.stop(REF, 15, 100)
    (ended,) = [each for each in heard.seen if isinstance(each, ProcessExited)]
    assert ended.exit.signal == 9 and ended.exit.reason == "stopped"


def test_the_jobs_have_every_method_of_real_supervisors_with_its_arguments() -> None:
    for name, method in inspect.getmembers(JobSupervisors, inspect.isfunction):
        if not name.startswith("_"):
            expected, found = (
                list(inspect.signature(each).parameters)
                for each in (method, getattr(TimedJobs, name))
            )
            assert found == expected, name


async def test_an_attempt_is_launched_once() -> None:
    jobs = TimedJobs(lambda: 7)
    await jobs.start(Heard())
    await jobs.launch(launch("true"))
    with pytest.raises(AlreadyStarted):
        await jobs.launch(launch("true"))
    await jobs.close()
