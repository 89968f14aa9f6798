"""The last commit of each writer, the same in every reader. Pure."""

import msgspec


class WriterMark(msgspec.Struct, frozen=True):
    """The last commit of a writer's subject.

    After an `ignored` one (`reading.py`) the next may have any number.
    """

    seq: int
    number: int
    at_ns: int
    epoch: int
    ignored: bool = False
