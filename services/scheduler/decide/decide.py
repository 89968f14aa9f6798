"""The scheduler's decisions, as a list of rules.

Each rule reads the state and returns the facts of one decision, or nothing.

Pure: the same state, clocks and observations give the same facts. The shell applies the facts of
one rule and starts again from the first rule. The order below is therefore the order of importance:
rules that free devices come before rules that use them.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common.facts import (
    AnyFact,
    ModelAutoscaled,
    PluginDisabled,
    RestoreSettled,
    StateHashed,
)
from libs.common.model import JobId, NodeId
from libs.common.state.plugins import PluginFault
from libs.common.state.state_hash import NO_HASH, StateHash
from services.scheduler.decide.elastic import grow
from services.scheduler.decide.fabric import drain_suspect
from services.scheduler.decide.idle import end_idle
from services.scheduler.decide.locks import serve_locks
from services.scheduler.decide.nodes import (
    bury_node,
    hold_back,
    lose_node,
    remove_node,
    return_node,
    vacate,
)
from services.scheduler.decide.placing import (
    catch_up,
    enqueue,
    place,
    place_reserved,
    preempt,
    withdraw,
)
from services.scheduler.decide.preflight import measure_links
from services.scheduler.decide.stops import (
    expire,
    settle,
    stop,
    stop_drained,
    stop_unsaved,
    stop_unstarted,
)
from services.scheduler.models.keeping import keep, with_evictions
from services.scheduler.models.models import autoscale, scale
from services.scheduler.queueing.queue_order import note_charges
from services.scheduler.state.state import State

NONE: Final[tuple[AnyFact, ...]] = ()


class Observations(msgspec.Struct, frozen=True):
    """The inputs of a decision that are not in the log.

    `silent` are the (node, incarnation) pairs not heard for longer than a lease and its margin.
    `dead` are pairs that an operator declared dead, whatever the scheduler hears of others.
    `quiet` are nodes that missed some heartbeats. `removable` are the nodes to remove that no agent
    has in its roster any more. `faults` are faults of plug-ins. `drained` are retired replicas at
    which no gateway has a request. `wanted` are models whose number of replicas should change.
    `settled`: after a restore, no attempt can be alive that the log does not know.
    `hashed` is the newest hash of the acknowledged state.
    """

    silent: tuple[tuple[NodeId, int], ...] = ()
    dead: tuple[tuple[NodeId, int], ...] = ()
    quiet: tuple[NodeId, ...] = ()
    removable: tuple[NodeId, ...] = ()
    faults: tuple[PluginFault, ...] = ()
    drained: tuple[JobId, ...] = ()
    wanted: tuple[ModelAutoscaled, ...] = ()
    settled: bool = False
    hashed: StateHash = NO_HASH

    def without(self, node_id: NodeId) -> "Observations":
        """Return these without the silence of a node that was heard since."""
        silent = tuple(each for each in self.silent if each[0] != node_id)
        dead = tuple(each for each in self.dead if each[0] != node_id)
        if (silent, dead) == (self.silent, self.dead):
            return self
        return msgspec.structs.replace(self, silent=silent, dead=dead)


NOTHING_OBSERVED: Final = Observations()


def decide(
    state: State, now_ns: int, observed: Observations = NOTHING_OBSERVED, wall_ns: int | None = None
) -> Sequence[AnyFact]:
    """Return the facts of the next decision; none if there is nothing to decide.

    `now_ns` is this machine's boot clock, because durations are never computed from two machines'
    clocks. `wall_ns` is the time of facts, for waits after crashes, which outlive a term. Without
    it, `now_ns` serves as both.
    """
    state.ring(now_ns)
    state.pass_time(now_ns if wall_ns is None else wall_ns)
    if state.epoch == 0 or state.cluster.epoch != state.epoch:
        return NONE
    return (
        disable(state, observed.faults)
        or settle(state)
        or stop(state)
        or stop_drained(state, observed.drained)
        or stop_unstarted(state, now_ns)
        or expire(state)
        or end_idle(state, now_ns if wall_ns is None else wall_ns)
        or stop_unsaved(state)
        or bury_node(state, observed.dead)
        or return_node(state)
        or hold_back(state)
        or lose_node(state, observed.silent)
        or vacate(state)
        or remove_node(state, observed.removable)
        or locks_served(state, now_ns, now_ns if wall_ns is None else wall_ns)
        or withdraw(state)
        or autoscale(state, observed.wanted)
        or scale(state, now_ns if wall_ns is None else wall_ns, observed.quiet)
        or enqueue(state)
        or settle_restore(state, observed.settled)
        or (NONE if state.cluster.settling else _use_devices(state, now_ns, wall_ns))
        or record_hash(state, observed.hashed)
    )


def _use_devices(state: State, now_ns: int, wall_ns: int | None) -> Sequence[AnyFact]:
    """Return the facts of the rules that give devices to jobs and to kept data."""
    note_charges(state)
    return (
        with_evictions(state.cluster, place_reserved(state) or place(state))
        or keep(state, now_ns if wall_ns is None else wall_ns)
        or preempt(state)
        or grow(state)
        or drain_suspect(state)
        or measure_links(state, now_ns)
        or catch_up(state)
    )


def locks_served(state: State, now_ns: int, wall_ns: int) -> Sequence[AnyFact]:
    """Serve the locks; after a restore only once nothing unknown can be alive, since a holder that
    the backup does not know may be.
    """
    return NONE if state.cluster.settling else serve_locks(state, now_ns, wall_ns)


def settle_restore(state: State, settled: bool) -> Sequence[AnyFact]:
    """Let jobs start again after a restore, once nothing unknown can be alive."""
    if state.cluster.settling and settled:
        return (RestoreSettled(life=state.cluster.life),)
    return NONE


def disable(state: State, faults: Sequence[PluginFault]) -> Sequence[AnyFact]:
    """Disable a plug-in that failed, for every scheduler that folds this fact."""
    for fault in faults:
        plugins = state.cluster.plugins
        if plugins.version_of(fault.extends, fault.name) == fault.version and plugins.in_force(
            fault.extends, fault.name
        ):
            return (PluginDisabled(**fault._asdict()),)
    return NONE


def record_hash(state: State, hashed: StateHash) -> Sequence[AnyFact]:
    """Record the hash of the acknowledged state, for other members to compare with theirs."""
    if hashed.seq <= state.cluster.state_hash.seq:
        return NONE
    return (StateHashed(seq=hashed.seq, schema=hashed.schema, parts=hashed.parts),)
