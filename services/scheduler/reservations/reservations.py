"""The nodes that are closed to a job, because they are reserved for other jobs or for maintenance.

Pure, and a function of the folded state and the time. A job starts on a node only if it ends
(`latest_end_ns`) before a reservation of others begins there. Without a time limit it does not
start there at all while such a reservation is ahead. The end of an allocation is known, and the
gateway refuses to extend it into a reservation. A job that names its own reservation runs in
it and nowhere else; once the reservation is over or cleared, it is an ordinary job. A short array
is judged by its smallest batch, because a batch is made as small as it must be. Running jobs are
left alone. The simulation's checker is `reservations_are_kept`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from libs.common.state.cluster import Job
from libs.common.state.ordering import SECOND_NS
from libs.common.state.reservation import Reservation
from services.scheduler.placement.choose import Choice
from services.scheduler.placement.forecast import latest_end_ns
from services.scheduler.queueing.shape import shortest_spec
from services.scheduler.state.state import State

NAMED_MAX: Final = 8
# Number of reservations whose nodes are cached as bits.
SETS_MAX: Final = 1_024


def own_reservation(state: State, job: Job) -> Reservation | None:
    """Return the reservation that the job names, if it admits the job and is not over."""
    known = state.cluster.reservations.get(job.spec.reservation)
    return (
        known
        if known is not None
        and state.wall_ns < known.end_ns
        and known.is_for(job.spec, job.tenant, job.user)
        else None
    )


def is_open(state: State, name: str) -> bool:
    """Return whether the reservation with this name has begun and is not over."""
    known = state.cluster.reservations.get(name)
    return known is not None and known.start_ns <= state.wall_ns < known.end_ns


def pass_of(state: State, job: Job) -> str:
    """Return the name of the job's reservation; empty for jobs that wait for unreserved nodes."""
    if not state.cluster.reservations:
        return ""
    own = own_reservation(state, job)
    return own.name if own is not None else ""


def is_early(state: State, job: Job) -> bool:
    """Return whether the job's own reservation has not begun yet."""
    if not state.cluster.reservations:
        return False
    own = own_reservation(state, job)
    return own is not None and state.wall_ns < own.start_ns


def kept_from(state: State, job: Job) -> list[Reservation]:
    """Return the reservations of others that are not over, by their beginning."""
    own = own_reservation(state, job)
    others = [
        each
        for each in state.cluster.reservations.values()
        if each is not own and state.wall_ns < each.end_ns
    ]
    return sorted(others, key=lambda each: (each.start_ns, each.name))


def in_the_way(state: State, job: Job) -> list[Reservation]:
    """Return the reservations of others that begin before the job would have ended."""
    end_ns = latest_end_ns(shortest_spec(job), state.wall_ns)
    return [each for each in kept_from(state, job) if each.start_ns < end_ns]


def nodes_of(state: State, kept: Reservation) -> int:
    """Return the existing nodes of the reservation as bits; the result is cached."""
    known = state.capacity.sets
    if kept not in known:
        if len(known) >= SETS_MAX:
            del known[next(iter(known))]  # the oldest
        index = state.capacity.index
        known[kept] = sum(
            [1 << index[node_id] for node_id in dict.fromkeys(kept.nodes) if node_id in index]
        )
    return known[kept]


def closed_to(state: State, job: Job) -> int:
    """Return the nodes on which the job may not start now, as bits."""
    capacity = state.capacity
    closed = capacity.closed_to(job.tenant) if capacity.exclusive else 0
    if not state.cluster.reservations:
        return closed
    own = own_reservation(state, job)
    closed |= ~nodes_of(state, own) if own is not None else 0
    for each in in_the_way(state, job):
        closed |= nodes_of(state, each)
    return closed


def is_closed_to(state: State, job: Job, choice: Choice) -> bool:
    """Return whether a chosen node is closed to the job now, for choices made before a reservation
    was set.
    """
    closed = closed_to(state, job)
    return any(closed >> state.capacity.index[node_id] & 1 for node_id, _ in choice)


def put_off(state: State, job: Job, whens: Mapping[int, int]) -> Mapping[int, int]:
    """Return from when on each node serves the job for as long as it runs, around reservations of
    others.
    """
    closed = state.capacity.closed_to(job.tenant)
    if closed:
        whens = {index: when for index, when in whens.items() if not closed >> index & 1}
    if not state.cluster.reservations:
        return whens
    own, others = (
        own_reservation(state, job),
        [(each, nodes_of(state, each)) for each in kept_from(state, job)],
    )
    open_to = nodes_of(state, own) if own is not None else state.capacity.everywhere
    lasts_ns = latest_end_ns(shortest_spec(job), 0)
    found: dict[int, int] = {}
    for index, when in whens.items():
        if not open_to >> index & 1:
            continue
        found[index] = max(when, state.wall_ns)
        for each, nodes in others:
            if (
                nodes >> index & 1
                and found[index] < each.end_ns
                and each.start_ns < found[index] + lasts_ns
            ):
                found[index] = each.end_ns
    return found


def window_words(state: State, job: Job) -> Iterator[tuple[str, int, str]]:
    """Yield which nodes reservations close to the job: the reason, the number of nodes, and
    details.

    Nodes that take no jobs of the job's tenant come first.
    """
    closed = state.capacity.closed_to(job.tenant)
    if closed:
        names = [
            node_id for index, node_id in enumerate(state.capacity.nodes) if closed >> index & 1
        ]
        yield f"takes no jobs of tenant {job.tenant}", len(names), ", ".join(names[:NAMED_MAX])
    own = own_reservation(state, job)
    if own is not None:
        yield "runs in its reservation only", len(own.nodes), f"{own.name}, {_span(state, own)}"
    for each in in_the_way(state, job):
        what = "maintenance" if each.is_maintenance else "reserved for others"
        yield (
            what,
            len(each.nodes),
            f"{', '.join(each.nodes[:NAMED_MAX])} ({each.name}, {_span(state, each)})",
        )


def _span(state: State, kept: Reservation) -> str:
    """Return when the reservation begins and ends, relative to the time of facts."""
    ahead_s, left_s = (
        max(0, at_ns - state.wall_ns) // SECOND_NS for at_ns in (kept.start_ns, kept.end_ns)
    )
    return f"begins in {ahead_s} s, for {left_s - ahead_s} s" if ahead_s else f"for {left_s} s more"
