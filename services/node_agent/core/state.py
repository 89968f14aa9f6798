"""The state of the agent's core: one node, its attempts and its devices.

Pure. `apply.py` changes the state by what was observed, `decide.py` by what it asks for. An attempt
goes waiting -> launching -> launched -> exited, or waiting -> refused. It leaves the state once the
log has acknowledged its last fact, and its key stays in `over`: it never starts again. `over` has
the sequence of that fact. In one history the orders of an attempt are earlier than its last fact.
Times are nanoseconds of the boot clock. Tests: tests/unit/test_agent_decide.py,
tests/unit/test_agent_used_numbers.py.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common.messages import Order, ProbeOrder, StartOrder, digest
from libs.common.model import AttemptRef, NodeId, attempt_key
from libs.common.timing import NOTICE_MS
from services.node_agent.core import controls as dc
from services.node_agent.core import devices as d
from services.node_agent.core import hangs, keeping, serving, shares
from services.node_agent.core import observations as o
from services.node_agent.core.attempt import Attempt as Attempt
from services.node_agent.core.attempt import Stop as Stop

WAITING: Final = "waiting"
LAUNCHING: Final = "launching"
LAUNCHED: Final = "launched"
EXITED: Final = "exited"
REFUSED: Final = "refused"

STARTED_LEVEL: Final = 1
FINISHED_LEVEL: Final = 2
OVER_LEVEL: Final = 3

MS: Final = 1_000_000


class State(msgspec.Struct, kw_only=True):
    """All that the core knows.

    `desired_seq` is the log sequence of the last full desired state: older orders are ignored.
    `touched` holds the attempts that the next `decide` must consider, `timers` when it must
    consider an attempt although nothing happened. `changed`: the devices differ from those that the
    node registered. `unstored` counts commits that the log has not acknowledged. `release_ns`
    bounds how long a device may take to be clean after a job. `probes` are
    ordered probes of the fabric that have still to begin. `guard` is what is known of the lease
    watchdog and the hardware watchdog, `guard_recorded` what the log says about them.
    `lease_notice_ns`: see `actions.ExtendLease`.
    """

    node_id: NodeId
    incarnation: int
    epoch: int = 0
    lease_epoch: int = 0
    lease_deadline_ns: int = 0
    lease_notice_ns: int = NOTICE_MS * MS
    lease_written_epoch: int = 0
    lease_written_ns: int = 0
    lease_digest: str = ""
    desired_seq: int = 0
    acked_seq: int = 0
    ask_at_ns: int = 0
    ask_not_before_ns: int = 0
    lost: bool = False
    ended: bool = False
    attempts: dict[str, Attempt] = {}
    over: dict[str, int] = {}
    touched: dict[str, None] = {}
    timers: dict[str, int] = {}
    to_forget: list[Attempt] = []
    release_ns: int = 30_000_000_000
    devices: d.Devices = msgspec.field(default_factory=d.Devices)
    changed: bool = False
    unstored: int = 0
    controls: dc.Controls = msgspec.field(default_factory=dc.Controls)
    probes: list[ProbeOrder] = []
    guard: o.GuardChanged = o.GuardChanged()
    guard_recorded: o.GuardChanged = o.GuardChanged()
    keeps: keeping.Keeps = msgspec.field(default_factory=keeping.Keeps)


def begin(
    node_id: NodeId, incarnation: int, adopted: Sequence[o.Adopted], before: State | None = None
) -> State:
    """Return the state of a new incarnation, with the attempts that were found on disk.

    `before` is the previous state of this process, if any: its attempts, epoch, lease, devices and
    finished keys stay.
    """
    state = State(node_id=node_id, incarnation=incarnation)
    if before is not None:
        state.epoch, state.over, state.release_ns, state.devices = (
            before.epoch,
            before.over,
            before.release_ns,
            before.devices,
        )
        state.keeps, state.guard = before.keeps, before.guard
        state.controls, state.unstored = before.controls, before.unstored
        state.attempts, state.timers, state.touched = before.attempts, before.timers, before.touched
        state.lease_epoch, state.lease_deadline_ns = before.lease_epoch, before.lease_deadline_ns
        state.lease_notice_ns = before.lease_notice_ns
        state.lease_written_epoch, state.lease_written_ns = (
            before.lease_written_epoch,
            before.lease_written_ns,
        )
    for found in adopted:
        key = key_of(found.ref)
        attempt = Attempt(
            ref=found.ref,
            phase=LAUNCHED,
            rank=found.rank,
            gpus=found.gpus,
            slices=found.slices,
        )
        attempt.time_limit_s, attempt.grace_s, attempt.ignore_lease = (
            found.time_limit_s,
            found.grace_s,
            found.ignore_lease,
        )
        attempt.health, attempt.hang = (
            serving.adopted_health(found.probe),
            hangs.hang_of(found.hang_timeout_s),
        )
        attempt.share = shares.share_of_parts(found.parts)
        attempt.use.told = None
        state.attempts[key] = attempt
        state.touched[key] = None
    return state


def key_of(ref: AttemptRef) -> str:
    """Return the key of an attempt, for example `job-7.1`."""
    return attempt_key(ref.job_id, ref.attempt)


def is_used_again(state: State, key: str, order: Order) -> bool:
    """Return whether the log has placed an attempt after this node had recorded its end.

    A restored log may not know an attempt that has ended. Then it gives the same number to the next
    one.
    """
    return isinstance(order, StartOrder) and order.seq > state.over[key]


def accounted(state: State) -> list[AttemptRef]:
    """Return the attempts whose last fact is not acknowledged, in order.

    The scheduler counts the same attempts as placed, started or finished.
    """
    return sorted(attempt.ref for attempt in state.attempts.values())


def local_digest(state: State) -> str:
    """Return the digest of this node's attempts, stops, device controls and resident data.

    The scheduler computes it from the log over the members that are placed, started or finished on
    this node. The two agree once all facts are acknowledged and all orders have arrived.
    """
    ordered = ((attempt.ref, attempt.ordered) for attempt in state.attempts.values())
    return digest(
        accounted(state),
        ((ref, stop.signal, stop.grace_ms) for ref, stop in ordered if stop is not None),
        dc.digest_entries(state.controls),
        keeping.digest_entries(state.keeps),
    )


def is_wanted(state: State, key: str) -> bool:
    """Return whether an attempt that is being prepared should still start."""
    attempt = state.attempts.get(key)
    return attempt is not None and attempt.stop is None and not state.lost


def goes_on(attempt: Attempt) -> bool:
    """Return whether the attempt runs and outlives the lease.

    The next incarnation accounts for it.
    """
    return attempt.phase == LAUNCHED and attempt.ignore_lease
