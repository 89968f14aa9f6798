"""The files by which jobs say that their work is saved: whose time counts, and how often they are
looked at.
"""

import asyncio
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from libs.common.model import AttemptRef
from services.node_agent.core import state as s
from services.node_agent.core.attempt import SIGTERM
from services.node_agent.core.observations import Adopted
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.directories.protocol import CHECKPOINT
from services.node_agent.jobs.checkpoints import watch
from tests.given_node import INCARNATION, NODE, ref
from tests.sim.loop import run

SECOND_NS = 1_000_000_000
FAR_S = 1 << 33  # in the year 2242, which every file system can hold


class Counting(JobDirectories):
    """Notes who is looked at."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir)
        self.looks: Counter[str] = Counter()

    def checkpointed_ns(self, ref: AttemptRef) -> int:
        self.looks[ref.job_id] += 1
        return super().checkpointed_ns(ref)

    def save(self, ref: AttemptRef) -> Path:
        file = Path(self.directory_of(ref)) / CHECKPOINT
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        return file


@pytest.fixture
def jobs(tmp_path: Path) -> Counting:
    return Counting(tmp_path)


@pytest.mark.parametrize("at_s", [FAR_S, -5])
def test_whatever_time_a_job_gives_its_file_it_counts_when_it_was_touched(
    jobs: Counting, at_s: int
) -> None:
    before_ns = time.time_ns() - SECOND_NS  # a file system's clock has coarse steps
    os.utime(jobs.save(ref()), (at_s, at_s))
    first_ns = jobs.checkpointed_ns(ref())
    assert before_ns < first_ns <= time.time_ns()
    assert jobs.checkpointed_ns(ref()) == first_ns


def test_a_file_of_a_clock_that_is_ahead_counts_as_of_now(
    jobs: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.save(ref())
    monkeypatch.setattr(time, "time_ns", lambda: 5 * SECOND_NS)
    assert jobs.checkpointed_ns(ref()) == 5 * SECOND_NS


def test_only_stopping_jobs_are_checked_more_often(jobs: Counting) -> None:
    """For 10 seconds, of which one of two is told to stop for 5."""
    state = s.begin(NODE, INCARNATION, [Adopted(ref("told")), Adopted(ref("other"))])

    async def looked() -> None:
        watching = asyncio.create_task(watch(lambda: state, jobs, lambda seen: None))
        await asyncio.sleep(4.95)
        assert jobs.looks == {"told": 5, "other": 5}
        state.attempts["told.1"].stop_sent = s.Stop("preempted", SIGTERM, 60_000)
        await asyncio.sleep(5)
        watching.cancel()

    run(looked())
    assert jobs.looks["other"] == 10
    assert jobs.looks["told"] == 5 + 50
