"""Spreads the replicas of a model so that it survives the loss of a node: nodes with the fewest
replicas come first.

Pure. The preference is soft: a replica that fits only beside others goes there. Replicas of the
same generation count before those of earlier ones, which a redeployment ends soon. After two
crashes in a row a replica first avoids the nodes where replicas crashed, because such a node may be
the cause, and only then spreads (decision 109). Ordinary jobs never come here, so spreading costs
them nothing. Tests: tests/unit/test_scheduler_spread.py.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from libs.common.folds.model_fold import replica_id, was_steady
from libs.common.life import job_life
from libs.common.model import SPREAD_NONE, SPREAD_RACK, NodeId, Serve
from libs.common.state.cluster import Cluster, Job, Model
from services.scheduler.models.on_devices import choose_with_weights
from services.scheduler.placement.bits import indexes
from services.scheduler.placement.choose import NO_PLACEMENT, Choice
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.queueing.backfill import BackfillPass
from services.scheduler.state.state import State

# So many sets of nodes where replicas crashed are tried, and so many replicas are looked at.
CRASHED_MAX: Final = 4
LOOKED_AT: Final = 32

# Sort key of a node, the least crowded first: replicas of this generation and of all, in its rack
# (0 unless racks count) and on it.
Crowd = tuple[int, int, int, int]


def choose_spread(
    state: State, backfill_pass: BackfillPass, job: Job, serve: Serve, request: ResourceRequest
) -> Choice:
    """Choose for a replica as for any job, among the least crowded nodes on which it fits.

    Devices that have the model's weights come first, also on a crowded node. Nodes where replicas
    crashed come last.
    """
    choice = backfill_pass.choose(state, job, request)
    if choice is NO_PLACEMENT:
        return choice
    crowds = list(_crowded(state, serve)) if serve.spread != SPREAD_NONE else []
    for crashed in (*_crashed_on(state, serve), 0):
        if serve.device_weights:
            warm = choose_with_weights(state, backfill_pass, job, serve, request, crashed)
            if warm is not NO_PLACEMENT:
                return warm
        for crowded in (*crowds, 0) if crashed else crowds:
            found = backfill_pass.choose(state, job, request, crashed | crowded)
            if found is not NO_PLACEMENT:
                return found
    return choice


def _crashed_on(state: State, serve: Serve) -> list[int]:
    """Return the nodes where the last replicas crashed, as bits, then the same without the oldest
    crash, and so on; empty unless two crashed in a row.
    """
    model = state.cluster.models.get(serve.model)
    if model is None or model.crashes < 2:
        return []
    found: list[int] = []
    for replica in _crashed(state.cluster, model):
        nodes = state.capacity.bits_of(replica.members)
        before = found[-1] if found else 0
        if nodes | before != before:
            found.append(nodes | before)
    return found[::-1][:CRASHED_MAX]


def _crashed(cluster: Cluster, model: Model) -> list[Job]:
    """Return the last replicas of this generation that crashed before they were steady, newest
    first.
    """
    newest = model.free_ordinal - 1
    ordinals = range(newest, max(0, newest - LOOKED_AT), -1)
    jobs = [cluster.jobs.get(replica_id(model.name, ordinal)) for ordinal in ordinals]
    return [job for job in jobs if job is not None and _has_crashed(job, model)]


def _has_crashed(job: Job, model: Model) -> bool:
    serve = job.spec.serve
    return (
        serve is not None
        and serve.generation == model.generation
        and job.state in (job_life.COMPLETED, job_life.FAILED)
        and not was_steady(job)
    )


def _crowded(state: State, serve: Serve) -> Iterator[int]:
    """Yield the nodes to avoid, as bits: first all that hold any replica, then all but the least
    crowded of those, and so on.
    """
    levels: dict[Crowd, int] = {}
    for index, crowd in _crowds(state, serve).items():
        levels[crowd] = levels.get(crowd, 0) | 1 << index
    crowded = sum(levels.values())
    for crowd in sorted(levels):
        yield crowded
        crowded ^= levels[crowd]


def _crowds(state: State, serve: Serve) -> dict[int, Crowd]:
    """Return how crowded each node is that holds a replica, or, where racks count, whose rack holds
    one.
    """
    new, all_of = _replicas_by_node(state, serve)
    nodes = {
        state.capacity.index[node_id]: (new[node_id], count) for node_id, count in all_of.items()
    }
    if serve.spread != SPREAD_RACK:
        return {index: (0, 0, *counts) for index, counts in nodes.items()}
    near = state.capacity.near
    racks: dict[str, tuple[int, int]] = {}
    for index, (newer, count) in nodes.items():
        rack = near.rack_of.get(index, "")
        before = racks.get(rack, (0, 0))
        racks[rack] = before[0] + newer, before[1] + count
    found = {
        index: (0, 0, *counts) for index, counts in nodes.items() if not near.rack_of.get(index, "")
    }
    for rack, counts in racks.items():
        for index in indexes(near.rack.get(rack, 0)):
            found[index] = (*counts, *nodes.get(index, (0, 0)))
    return found


def _replicas_by_node(state: State, serve: Serve) -> tuple[Counter[NodeId], Counter[NodeId]]:
    """Return how many replicas of this generation, and of all, each node holds.

    A retired replica does not count.
    """
    new: Counter[NodeId] = Counter()
    all_of: Counter[NodeId] = Counter()
    model = state.cluster.models.get(serve.model)
    for job_id, generation in model.jobs.items() if model is not None else ():
        job = state.cluster.jobs[job_id]
        if job.cancel is None:
            for node_id in job.members:
                all_of[node_id] += 1
                new[node_id] += generation == serve.generation
    return new, all_of
