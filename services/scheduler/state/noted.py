"""The scheduler's notes about jobs that are placed or have devices reserved. Pure."""

from typing import NamedTuple

from services.scheduler.queueing.queue import Shape


class Noted(NamedTuple):
    """A placed attempt: its address and port, its devices in hundredths of a GPU (at least 1), and
    its expected end (the wall clock).
    """

    attempt: int
    address: str
    port: int
    share: int
    end_ns: int


class Kept(NamedTuple):
    """The shape of a job that has devices reserved, with as many nodes; in hundredths of a GPU what
    of them it does not hold yet.
    """

    shape: Shape
    share: int
