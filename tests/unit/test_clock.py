"""Clocks that are far apart are named once, with the way out; those that are near are not."""

import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.model import JobId
from libs.common.process.clock import APART_MAX_S, ClockWatch
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.common.transport.writer import Writer

NOW_S = 1_000_000


class Stopped:
    """A clock that stands still."""

    def __init__(self, wall_s: float) -> None:
        self.wall_s = wall_s

    def wall_ns(self) -> int:
        return int(self.wall_s * 1e9)

    def boot_ns(self) -> int:
        return 0


@pytest.mark.parametrize(("off_s", "word"), [(3_600, "ahead of"), (-3_600, "behind")])
def test_writer_with_a_wrong_clock_is_reported_once(
    off_s: int, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    watch = ClockWatch(Stopped(NOW_S))
    for _ in range(3):
        watch.look("facts.scheduler", (NOW_S + off_s) * 1_000_000_000)
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"the clock of facts.scheduler is 3600 s {word}" in line and "timedatectl" in line


def test_writer_with_a_right_clock_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    ClockWatch(Stopped(NOW_S)).look("facts.scheduler", int((NOW_S + APART_MAX_S) * 1e9))
    assert caplog.records == []


@pytest.mark.parametrize(("behind_s", "lines"), [(3_600, 1), (30, 0), (-3_600, 0)])
async def test_a_writer_that_begins_behind_its_own_subject_says_so(
    behind_s: int, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    stream = MemoryStream()
    before = Writer(MemoryLog(stream), Stopped(NOW_S), subjects.QUOTA, lambda: 0)
    await before.attach()
    await before.commit([f.JobAdmitted(job_id=JobId("j"))])
    after = Writer(MemoryLog(stream), Stopped(NOW_S - behind_s), subjects.QUOTA, lambda: 0)
    await after.attach()
    assert len(caplog.records) == lines
    assert after.now_ns() == int(max(NOW_S, NOW_S - behind_s) * 1e9)
