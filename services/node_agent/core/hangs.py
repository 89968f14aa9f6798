"""Detect a job that hangs: busy devices, and no sign of progress for its hang timeout.

Pure. `job_watch.py` collects the signs of progress. CPU time is not a sign, because a process that
waits for a device usually spins (docs/health.md). Time counts between samples and starts again
after a gap in the samples, so a node that was suspended reports no hang. Tests:
tests/unit/test_hangs.py.
"""

from typing import Final

import msgspec

SECOND_NS: Final = 1_000_000_000
# Two samples that are further apart say nothing about the time between them.
APART_NS: Final = 10 * SECOND_NS
ERROR: Final = "no_progress"
SOURCE: Final = "watchdog"


class Hang(msgspec.Struct):
    """The progress of one job.

    `signs` are those of the last sample, at `looked_ns`. They have not changed since `since_ns` (0:
    its devices are not busy). `saving`: its evidence is being saved; then the job ends with
    `detail`.
    """

    timeout_s: int
    signs: tuple[int, ...] = ()
    since_ns: int = 0
    looked_ns: int = 0
    saving: bool = False
    detail: str = ""


def hang_of(timeout_s: int) -> Hang | None:
    """Return the watch of a job with this hang timeout; None without one."""
    return Hang(timeout_s) if timeout_s else None


def note_sample(hang: Hang, busy: bool, signs: tuple[int, ...], now_ns: int) -> None:
    """Note a sample; `busy`: one of the job's devices works, and no other job uses it."""
    goes_on = busy and hang.since_ns and signs == hang.signs and now_ns - hang.looked_ns <= APART_NS
    if not goes_on:
        hang.since_ns = now_ns if busy else 0
    hang.signs, hang.looked_ns = signs, now_ns


def is_over(hang: Hang) -> bool:
    """Return whether the timeout has passed, by the last sample."""
    return 0 < hang.since_ns <= hang.looked_ns - hang.timeout_s * SECOND_NS


def begin_saving(hang: Hang) -> bool:
    """Return whether the evidence must be saved now. That happens once."""
    due = is_over(hang) and not hang.saving
    hang.saving |= due
    return due


def evidence_saved(hang: Hang, where: str) -> bool:
    """Note that the evidence was saved, or could not be; return whether the job still hangs.

    A job that does not is watched again.
    """
    hang.saving = is_over(hang)
    if hang.saving:
        hang.detail = f"no progress for {hang.timeout_s} s while its GPUs were busy; {where}"
    return hang.saving
