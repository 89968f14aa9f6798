"""Whether a job hangs: its devices are busy and nothing that can be seen of it changes, for as long
as it said.

Pure.

Signs of progress are what `job_watch.py` sees of it. The time that its processes compute is none:
who waits for a device in vain mostly spins (docs/health.md). Time counts from look to look, anew
after a pause of the looks: on a node that stood still no job hangs. Tests:
tests/unit/test_hangs.py.
"""

from typing import Final

import msgspec

SECOND_NS: Final = 1_000_000_000
# Longer apart, two looks say nothing of what was between them.
APART_NS: Final = 10 * SECOND_NS
ERROR: Final = "no_progress"
SOURCE: Final = "watchdog"


class Hang(msgspec.Struct):
    """`signs` are those of the last look, at `looked_ns`; they are the same since `since_ns` (0:
    its devices are not busy).

    `asked`: its evidence is being saved, after which it ends as `detail`.
    """

    timeout_s: int
    signs: tuple[int, ...] = ()
    since_ns: int = 0
    looked_ns: int = 0
    asked: bool = False
    detail: str = ""


def of(timeout_s: int) -> Hang | None:
    return Hang(timeout_s) if timeout_s else None


def looked(hang: Hang, busy: bool, signs: tuple[int, ...], now_ns: int) -> None:
    """`busy`: one of its devices works, and nobody else is on them."""
    goes_on = busy and hang.since_ns and signs == hang.signs and now_ns - hang.looked_ns <= APART_NS
    if not goes_on:
        hang.since_ns = now_ns if busy else 0
    hang.signs, hang.looked_ns = signs, now_ns


def is_over(hang: Hang) -> bool:
    """By the last look."""
    return 0 < hang.since_ns <= hang.looked_ns - hang.timeout_s * SECOND_NS


def ask(hang: Hang) -> bool:
    """Whether its evidence is to be saved now; once."""
    due = is_over(hang) and not hang.asked
    hang.asked |= due
    return due


def saved(hang: Hang, where: str) -> bool:
    """The evidence is kept, or cannot be.

    Whether the job still hangs; one that does not is watched on.
    """
    hang.asked = is_over(hang)
    if hang.asked:
        hang.detail = f"no progress for {hang.timeout_s} s while its GPUs were busy; {where}"
    return hang.asked
