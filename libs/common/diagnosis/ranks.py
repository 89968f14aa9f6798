"""The evidence of a diagnosis by rank: one process and its places for each rank of the job. Pure.

Tests: tests/unit/test_diagnosis_rules.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from libs.common.diagnosis import places
from libs.common.diagnosis.evidence import PROCESSES_MAX, NodeSeen, ProcessSeen
from libs.common.diagnosis.places import Place

# Hundredths of the ranks that must be at one place, so that the others are suspects.
MAJORITY: Final = 70
# A process that used at least this part of a CPU (hundredths) during the diagnosis computes.
COMPUTES: Final = 20
CAUSES: Final = {
    places.INPUT: "input",
    places.LOCK: "lock",
    places.SLEEP: "sleep",
    places.STORAGE: "storage",
}
# One that used at most this part of a CPU, or of its device, is idle.
IDLE: Final = 2
ALL: Final = 100
# The ranks of a job. A job may name any number, and a node may report any.
RANKS_MAX: Final = 65_536


class Rank(NamedTuple):
    """A rank with its process, its node and its place in each look, the last one last."""

    number: int
    node: NodeSeen
    process: ProcessSeen
    seen: tuple[Place, ...]

    @property
    def place(self) -> Place:
        return self.seen[-1]

    @property
    def waiting(self) -> int:
        """The part of the looks, in hundredths, in which the rank waited in a collective, or for a
        device that may be in one.
        """
        inside = sum(place.kind in places.WAITS for place in self.seen)
        return ALL * inside // len(self.seen)

    @property
    def computes(self) -> bool:
        used, watched = self.process.cpu_ms, self.process.watched_ms
        return watched > 0 and ALL * used >= COMPUTES * watched

    @property
    def busy_percent(self) -> int:
        """The load of its device; -1 if that is not known."""
        gpu, devices = self.process.gpu, self.node.devices
        return max((one.busy_percent for one in devices if gpu in ("", one.uuid)), default=-1)

    @property
    def is_idle(self) -> bool:
        """Return whether the process used no CPU, moved no bytes, and its device is idle."""
        process = self.process
        is_quiet = ALL * process.cpu_ms <= IDLE * process.watched_ms and process.moved_bytes <= 0
        return is_quiet and self.busy_percent <= IDLE

    @property
    def is_still(self) -> bool:
        """Return whether every look found it at the same place."""
        return len(set(self.seen)) == 1

    @property
    def cause(self) -> str:
        if self.place.kind == places.INPUT and self.computes:
            return "compute"  # it makes its input itself
        if self.place.kind in CAUSES:
            return CAUSES[self.place.kind]
        if self.process.state == "D":
            return "storage"
        return "compute" if self.computes else "unknown"


class Seen(NamedTuple):
    """The evidence of all nodes by rank.

    `world` and `local_world` are the numbers of ranks that the job has in all and on each node;
    the latter may be unknown (-1).
    """

    nodes: Sequence[NodeSeen]
    ranks: Mapping[int, Rank]
    world: int
    local_world: int

    @property
    def waits(self) -> list[Rank]:
        """The ranks that were in a collective in every look."""
        return [rank for rank in self.ranks.values() if rank.waiting == ALL]

    @property
    def has_looks(self) -> bool:
        return any(rank.process.looks for rank in self.ranks.values())


def gathered(nodes: Sequence[NodeSeen]) -> Seen:
    """Return the evidence by rank. If one rank has two processes, the first counts.

    Numbers beyond the bounds are left out, because the rules go through that many ranks.
    """
    ranks: dict[int, Rank] = {}
    for node in nodes:
        for process in node.processes[:PROCESSES_MAX]:
            if 0 <= process.rank < RANKS_MAX and process.rank not in ranks:
                looks = process.looks or ((),)
                seen = tuple(places.place_of(look, process.waits_in) for look in looks)
                ranks[process.rank] = Rank(process.rank, node, process, seen)
    told = [rank.process.world for rank in ranks.values() if rank.process.world <= RANKS_MAX]
    world = max([*told, len(nodes), *(number + 1 for number in ranks)])
    each = [rank.process.local_world for rank in ranks.values()]
    local_world = max((one if one <= PROCESSES_MAX else -1 for one in each), default=1)
    return Seen(nodes, dict(sorted(ranks.items())), world, local_world)


def expected(seen: Seen, node: NodeSeen) -> range:
    """Return the ranks that a node should have; empty if the evidence does not say.

    Launchers number the ranks node by node.
    """
    each = seen.local_world
    if each < 1 or each * len(seen.nodes) != seen.world:
        return range(0)
    found = range(node.member * each, (node.member + 1) * each)
    own = (process.rank for process in node.processes[:PROCESSES_MAX])
    is_whole = all(
        number in found
        for number in own
        if number in seen.ranks and seen.ranks[number].node is node
    )
    return found if is_whole else range(0)


def homes(seen: Seen) -> dict[int, NodeSeen]:
    """Return the node that should have each rank, as far as the evidence says."""
    return {number: node for node in seen.nodes for number in expected(seen, node)}


def is_majority(waiting: int, others: int, seen: Seen) -> bool:
    """Return whether nearly all ranks wait, so that the few `others` are suspects.

    A job of two or three ranks has at most one suspect.
    """
    total = len(seen.ranks)
    if total <= 3:
        return waiting >= 1 and others <= 1 and waiting + others == total
    return ALL * waiting >= MAJORITY * total


def rank_of(node: NodeSeen, gpu: str) -> int:
    """Return the rank that has the device; -1 if several ranks of the node may use it."""
    own = [process.rank for process in node.processes if process.gpu == gpu]
    all_ranks = [process.rank for process in node.processes]
    found = own or all_ranks
    return found[0] if len(found) == 1 else -1


def numbers(ranks: Iterable[int]) -> str:
    """Return ranks as a text such as "0-6,8"."""
    spans: list[list[int]] = []
    for number in sorted(ranks):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in spans)
