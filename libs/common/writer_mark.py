"""Where a writer's subject stands, in every reader. Pure."""

import msgspec


class WriterMark(msgspec.Struct, frozen=True):
    """Where a writer's subject stands: its last commit. After one that was `ignored` (`reading.py`) the next may have any number."""

    seq: int
    number: int
    at_ns: int
    epoch: int
    ignored: bool = False
