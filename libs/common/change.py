"""The effect of one applied fact (`Change`), and its origin (`Stamp`). Pure."""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.facts import AnyFact, Unknown
from libs.common.model import JobId, NodeId
from libs.common.state.locks import ClaimKey


class Stamp(msgspec.Struct, frozen=True):
    """The origin of a fact.

    The sequence of its commit, the writer's wall clock, its epoch or incarnation, its kind and id.
    """

    seq: int
    at_ns: int
    epoch: int
    writer: str
    writer_id: str


class Change(msgspec.Struct, frozen=True):
    """The jobs, nodes, models and claims on locks that a fact changed.

    Indexes over them must be updated. `forgotten` are jobs that left the state.
    """

    jobs: tuple[JobId, ...] = ()
    nodes: tuple[NodeId, ...] = ()
    models: tuple[str, ...] = ()
    locks: tuple[ClaimKey, ...] = ()
    forgotten: tuple[JobId, ...] = ()


# The fact was ignored. Compare by identity: an empty Change() is a fact that was applied, but
# changed nothing that is indexed.
IGNORED: Final = Change()


def applied(
    facts: Iterable[AnyFact | Unknown], changes: Iterable[Change]
) -> list[AnyFact | Unknown]:
    """Return the facts that the fold did not ignore.

    A reader that acts on facts beside the fold uses these, because a node may send any fact.
    """
    return [fact for fact, change in zip(facts, changes, strict=True) if change is not IGNORED]
