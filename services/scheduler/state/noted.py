"""The scheduler's notes about jobs that are placed or have devices reserved. Pure."""

from typing import NamedTuple

import msgspec

from libs.common.model import JobId
from services.scheduler.queueing.shape import Shape


class Noted(msgspec.Struct):
    """A placed attempt: its address and port, its devices in hundredths of a GPU (at least 1), and
    its expected end (wall clock).
    """

    attempt: int
    address: str
    port: int
    share: int
    end_ns: int


def is_end_of(noted: Noted | None, overrun: tuple[int, JobId, int]) -> bool:
    """Return whether the entry (end, job, attempt) is the expected end of this attempt."""
    return noted is not None and (noted.end_ns, noted.attempt) == (overrun[0], overrun[2])


class Kept(NamedTuple):
    """The shape of a job with reserved devices, on as many nodes, and the share that it does not
    hold yet (in hundredths of a GPU), and the bytes of its pools that it does not hold yet.
    """

    shape: Shape
    share: int
    pools: int = 0
