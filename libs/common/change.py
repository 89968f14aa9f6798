"""What one applied fact touched, and the circumstances under which it was recorded. Pure."""

from typing import Final

import msgspec

from libs.common.model import JobId, NodeId


class Stamp(msgspec.Struct, frozen=True):
    """Where a fact came from: its commit's sequence, the writer's clock, its epoch or incarnation,
    the writer's kind and id.
    """

    seq: int
    at_ns: int
    epoch: int
    writer: str
    writer_id: str


class Change(msgspec.Struct, frozen=True):
    """The jobs, nodes and models that are not as they were: what an index over them has to look at
    again.
    """

    jobs: tuple[JobId, ...] = ()
    nodes: tuple[NodeId, ...] = ()
    models: tuple[str, ...] = ()


# The fact was ignored. Compare by identity: an empty Change() is a fact that took effect on nothing
# that is indexed.
IGNORED: Final = Change()
