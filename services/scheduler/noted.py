"""What the scheduler's state notes of jobs that are placed or have devices reserved. Pure."""

from typing import NamedTuple

from services.scheduler.queue import Shape


class Noted(NamedTuple):
    """Of a placed attempt: the port that it was given, and on which address; what it holds, in hundredths of a GPU, at least 1; when it is
    expected to end (the wall clock).
    """

    attempt: int
    address: str
    port: int
    share: int
    end_ns: int


class Kept(NamedTuple):
    """The shape of a job that has devices reserved, with as many nodes; in hundredths of a GPU what of them it does not hold yet."""

    shape: Shape
    share: int
