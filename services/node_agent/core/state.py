"""What the agent knows, and how each observation changes it.

Which orders count is decided here, by their guards.

Pure. An attempt goes waiting -> launching -> launched -> exited, or waiting -> refused, and leaves
once its last fact is acknowledged; a (job, attempt) that has left is never begun again. Times are
nanoseconds of the boot clock. Tests: tests/unit/test_agent_decide.py.
"""

import hashlib
from collections.abc import Sequence
from typing import Final, assert_never

import msgspec

from libs.common.devices import error_catalogue as e
from libs.common.devices import mig
from libs.common.devices.error_catalogue import DRAIN_THEN_RESET, ENDS_JOBS
from libs.common.messages import Desired, Lease, Order, Orders, StartOrder, StopOrder, digest
from libs.common.model import AttemptRef, GpuId, NodeId, attempt_key
from libs.common.reasons import HUNG, MPS_LOST, TIME_LIMIT
from services.node_agent.core import controls as dc
from services.node_agent.core import devices as d
from services.node_agent.core import hangs, hits, serving, shares
from services.node_agent.core import observations as o
from services.node_agent.core.attempt import Attempt as Attempt
from services.node_agent.core.attempt import Stop as Stop
from services.node_agent.core.devices import HOT
from services.node_agent.drivers.readings import WEDGED

WAITING: Final = "waiting"
LAUNCHING: Final = "launching"
LAUNCHED: Final = "launched"
EXITED: Final = "exited"
REFUSED: Final = "refused"

STARTED_LEVEL: Final = 1
FINISHED_LEVEL: Final = 2
OVER_LEVEL: Final = 3

MS: Final = 1_000_000
ATTEMPTS_MAX: Final = 8_192
OVER_KEPT: Final = 20_000
# How long an attempt that nobody wants any more has between TERM and KILL.
UNWANTED_GRACE_MS: Final = 5_000
SIGTERM: Final = 15
# All slices of a device.
WHOLE: Final = -1
# A job whose device has failed can save nothing of it.
HIT_GRACE_MS: Final = 1_000
# A difference is asked about a moment later: an order or an acknowledgement may be on its way.
ASK_AFTER_NS: Final = 20 * MS
ASK_JITTER_NS: Final = 200 * MS


class State(msgspec.Struct, kw_only=True):
    """`desired_seq` is the sequence of the last full desired state: orders up to it are old.

    `touched` are the attempts to look at again; `timers` says when to look at one although nothing
    happened; `changed`: what the node registered of its devices is not so any more; `unstored`
    counts what was said and is not known to be in the log. `release_ns` is how long a device may
    take to be clean.
    """

    node_id: NodeId
    incarnation: int
    epoch: int = 0
    lease_epoch: int = 0
    lease_deadline_ns: int = 0
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
    over: dict[str, None] = {}
    touched: dict[str, None] = {}
    timers: dict[str, int] = {}
    to_forget: list[Attempt] = []
    release_ns: int = 30_000_000_000
    devices: d.Devices = msgspec.field(default_factory=d.Devices)
    changed: bool = False
    unstored: int = 0
    controls: dc.Controls = msgspec.field(default_factory=dc.Controls)


def begin(
    node_id: NodeId, incarnation: int, adopted: Sequence[o.Adopted], before: State | None = None
) -> State:
    """The state of a new incarnation; `before` is the one that this process had, whose attempts,
    epoch, lease and tombstones stay.
    """
    state = State(node_id=node_id, incarnation=incarnation)
    if before is not None:
        state.epoch, state.over, state.release_ns, state.devices = (
            before.epoch,
            before.over,
            before.release_ns,
            before.devices,
        )
        state.controls, state.unstored = before.controls, before.unstored
        state.attempts, state.timers, state.touched = before.attempts, before.timers, before.touched
        state.lease_epoch, state.lease_deadline_ns = before.lease_epoch, before.lease_deadline_ns
        state.lease_written_epoch, state.lease_written_ns = (
            before.lease_written_epoch,
            before.lease_written_ns,
        )
    for found in adopted:
        key = key_of(found.ref)
        attempt = Attempt(
            ref=found.ref,
            phase=LAUNCHED,
            seq=found.seq,
            rank=found.rank,
            gpus=found.gpus,
            slices=found.slices,
        )
        attempt.time_limit_s, attempt.grace_s, attempt.ignore_lease = (
            found.time_limit_s,
            found.grace_s,
            found.ignore_lease,
        )
        attempt.health, attempt.hang = serving.adopted(found.probe), hangs.of(found.hang_timeout_s)
        attempt.share = shares.found(found.parts)
        state.attempts[key] = attempt
        state.touched[key] = None
    return state


def key_of(ref: AttemptRef) -> str:
    return attempt_key(ref.job_id, ref.attempt)


def accounted(state: State) -> list[AttemptRef]:
    """The attempts whose last fact is not acknowledged, in order: what the scheduler counts as
    placed, started or finished.
    """
    return sorted(attempt.ref for attempt in state.attempts.values())


def digest_here(state: State) -> str:
    """The scheduler computes the same over the members of this node that are placed, started or
    finished, and the stops of those that have one; both agree once facts are acknowledged and
    orders have come.
    """
    ordered = ((attempt.ref, attempt.ordered) for attempt in state.attempts.values())
    return digest(
        accounted(state),
        ((ref, stop.signal, stop.grace_ms) for ref, stop in ordered if stop is not None),
        dc.known(state.controls),
    )


def ask_jitter_ns(node_id: str) -> int:
    """Each node has its own, so that a thousand do not ask at once."""
    return (
        int.from_bytes(hashlib.blake2b(node_id.encode(), digest_size=4).digest(), "big")
        % ASK_JITTER_NS
    )


def apply(state: State, seen: o.Observation, now_ns: int) -> None:
    """Change the state by one observation; what follows from it is `decide`'s."""
    match seen:
        case o.OrdersCame(orders):
            _orders_came(state, orders)
        case o.LeaseCame(lease, incarnation, sent_boot_ns):
            if incarnation == state.incarnation and lease.epoch >= state.epoch:
                _lease_came(state, lease, sent_boot_ns, now_ns)
        case o.DesiredCame(desired):
            _desired_came(state, desired)
        case o.FactsStored(seq, marks):
            _facts_stored(state, seq, marks)
        case o.ShareLost(key, detail):
            if key in state.attempts:
                state.attempts[key].hit = hits.Hit(MPS_LOST, detail)
                _stop(state, key, state.attempts[key], Stop(MPS_LOST, SIGTERM, HIT_GRACE_MS))
        case o.EvidenceSaved(key, where):
            _evidence_saved(state, key, where)
        case o.DeviceErred():
            _device_erred(state, seen, now_ns)
        case o.DeviceAils(uuid, reason, trouble, checks):
            if reason == HOT:
                dc.heated(state.controls, uuid, trouble is not None)
            d.ails(state.devices, uuid, reason, trouble, checks)
            if trouble is None and reason == WEDGED:  # its driver was begun anew
                dc.again(state.controls, uuid)
        case o.DeviceReset():
            dc.was_reset(state.controls, state.devices, state.node_id, seen)
        case o.DevicesFound(modes, changed):
            state.controls.modes, state.changed = modes, state.changed or changed
        case o.DeviceControlled(order):
            dc.carried_out(state.controls, state.devices, state.node_id, order)
        case _:
            if (attempt := state.attempts.get(seen.key)) is not None:
                state.touched[seen.key] = None
                _attempt_saw(attempt, seen, now_ns)


def _device_erred(state: State, seen: o.DeviceErred, now_ns: int) -> None:
    """The attempts that have the device are hit by it, and end where they cannot go on."""
    judged = d.judged(state.devices, seen.error)
    hit = [
        state.attempts[key]
        for key in hits.of(judged, _reached(state, judged.reach, seen), seen.key)
    ]
    refs, shadow = tuple(attempt.ref for attempt in hit), state.devices.policy.shadow
    fact = hits.seen(
        state.node_id,
        seen.uuid,
        (seen.error.error, judged.verdict, seen.source),
        refs,
        shadow,
        seen.error.text,
    )
    if not d.erred(state.devices, fact, now_ns, judged.reach):
        return
    for attempt in hit:
        attempt.hit = hits.worse(
            attempt.hit, judged, f"{fact.error} of GPU {fact.uuid}: {fact.detail}".rstrip(": ")
        )
        if attempt.hit is not None and judged.verdict in ENDS_JOBS:
            _stop(
                state, key_of(attempt.ref), attempt, Stop(attempt.hit.reason, SIGTERM, HIT_GRACE_MS)
            )


def _evidence_saved(state: State, key: str, where: str) -> None:
    """A job that still hangs ends, and its devices are reset once they are free.

    One that has ended by itself meanwhile did not hang.
    """
    attempt, shadow = state.attempts.get(key), state.devices.policy.shadow
    if (
        attempt is None
        or attempt.phase != LAUNCHED
        or attempt.hang is None
        or not hangs.saved(attempt.hang, where)
    ):
        return
    _stop(state, key, attempt, Stop(HUNG, SIGTERM, HIT_GRACE_MS, attempt.hang.detail))
    for uuid in attempt.gpus:
        told = (hangs.ERROR, DRAIN_THEN_RESET, hangs.SOURCE)
        d.hung(
            state.devices,
            hits.seen(state.node_id, uuid, told, (attempt.ref,), shadow, attempt.hang.detail),
        )


def _reached(state: State, reach: e.Reach, seen: o.DeviceErred) -> list[str]:
    """The attempts that have the device and that an error of this reach may hit."""
    having = [(key, state.attempts[key]) for key in _having(state, seen.uuid)]
    if reach == e.INSTANCE and seen.slices is not None:
        return [
            key for key, attempt in having if attempt.slices.get(seen.uuid, WHOLE) & seen.slices
        ]
    if reach == e.FABRIC:
        return [key for key, attempt in having if attempt.joins_gpus]
    return [key for key, _ in having] if reach != e.NEW_WORK else []


def _having(state: State, uuid: GpuId) -> list[str]:
    """The attempts that have begun on a device and whose end is not said yet."""
    found = ((key, attempt) for key, attempt in state.attempts.items() if uuid in attempt.gpus)
    return [
        key
        for key, attempt in found
        if attempt.phase not in (WAITING, REFUSED) and attempt.queued < FINISHED_LEVEL
    ]


def _orders_came(state: State, orders: Orders) -> None:
    if orders.epoch < state.epoch or state.lost:
        return
    state.epoch = orders.epoch
    dc.heard(state.controls, orders.controls)
    for order in orders.orders:
        if order.seq > state.desired_seq:
            _obey(state, order)


def _obey(state: State, order: Order) -> None:
    """An attempt that has left stays over, whatever is ordered."""
    key = attempt_key(order.job_id, order.attempt)
    if key in state.over:
        return
    attempt = state.attempts.get(key)
    match order:
        case StartOrder():
            _want(state, key, attempt, order)
        case StopOrder():
            if attempt is None:
                attempt = _take_in(
                    state,
                    key,
                    Attempt(
                        ref=AttemptRef(order.job_id, order.attempt), phase=WAITING, seq=order.seq
                    ),
                )
            if attempt is not None:
                wish = Stop(order.reason, order.signal, order.grace_ms)
                attempt.ordered = _shorter(attempt.ordered, wish)
                _stop(state, key, attempt, wish)
        case _:
            assert_never(order)


def _want(state: State, key: str, attempt: Attempt | None, order: StartOrder) -> None:
    """One that is known only learns what it lacks (one found on disk); a new one must be of this
    incarnation.
    """
    if attempt is None and order.incarnation == state.incarnation:
        attempt = _take_in(
            state, key, Attempt(ref=AttemptRef(order.job_id, order.attempt), phase=WAITING)
        )
    if attempt is None or attempt.order is not None:
        return
    attempt.order, attempt.seq, attempt.rank = order, order.seq, order.rank
    attempt.gpus, attempt.slices = (
        tuple(hold.uuid for hold in order.gpus),
        mig.slices_of(order.gpus),
    )
    attempt.time_limit_s, attempt.grace_s, attempt.ignore_lease = (
        order.spec.time_limit_s,
        order.spec.grace_s,
        order.spec.ignores_lease,
    )
    attempt.hang, attempt.share = (
        attempt.hang or hangs.of(order.spec.hang_timeout_s),
        attempt.share or shares.of(order.gpus),
    )
    if attempt.health is None:
        attempt.health = (serving.beginning if attempt.phase == WAITING else serving.adopted)(
            serving.probe_of(order)
        )
    state.touched[key] = None


def _take_in(state: State, key: str, attempt: Attempt) -> Attempt | None:
    if len(state.attempts) >= ATTEMPTS_MAX:
        return None  # the digest brings it again
    state.attempts[key] = attempt
    state.touched[key] = None
    return attempt


def is_wanted(state: State, key: str) -> bool:
    """Whether an attempt that is being made ready is still to begin."""
    attempt = state.attempts.get(key)
    return attempt is not None and attempt.stop is None and not state.lost


def goes_on(attempt: Attempt) -> bool:
    """It runs, and no silence of the scheduler ends it: the next incarnation accounts for it."""
    return attempt.phase == LAUNCHED and attempt.ignore_lease


def limit_at_ns(attempt: Attempt) -> int:
    """When its time limit passes, on this machine's own clock from when its process began; 0 for
    never.
    """
    if not attempt.time_limit_s or not attempt.began_ns:
        return 0
    return attempt.began_ns + attempt.time_limit_s * 1_000 * MS


def stop_at_limit(attempt: Attempt) -> None:
    """The agent's own reason to stop; what the scheduler ordered counts if it leaves less time."""
    attempt.stop = _shorter(attempt.stop, Stop(TIME_LIMIT, SIGTERM, attempt.grace_s * 1_000))


def _shorter(had: Stop | None, wish: Stop) -> Stop:
    """A repeated wish changes nothing; a later one counts when it leaves less time.

    The scheduler's fold keeps the same rule.
    """
    return wish if had is None or wish.grace_ms < had.grace_ms else had


def _stop(state: State, key: str, attempt: Attempt, wish: Stop) -> None:
    before, attempt.stop = attempt.stop, _shorter(attempt.stop, wish)
    if attempt.stop is not before:
        state.touched[key] = None


def _lease_came(state: State, lease: Lease, sent_boot_ns: int, now_ns: int) -> None:
    """The lease counts from when we sent.

    An older answer never shortens it, but a newer term's replaces it: a process that begins knows
    of no term, so the file's deadline stays until its first lease.
    """
    state.epoch = lease.epoch
    if lease.verdict == "lost":
        state.lost = True
        state.touched.update(dict.fromkeys(state.attempts))
    if lease.verdict != "ok" or state.lost:
        return
    deadline_ns = sent_boot_ns + lease.lease_ms * MS
    if lease.lease_ms > 0 and (
        lease.epoch > state.lease_epoch or deadline_ns > state.lease_deadline_ns
    ):
        state.lease_epoch, state.lease_deadline_ns = lease.epoch, deadline_ns
        state.touched.update(
            (key, None) for key, attempt in state.attempts.items() if attempt.phase == WAITING
        )
    if lease.seq < state.acked_seq:
        return  # older than what we have said since
    state.lease_digest = lease.digest
    if lease.digest == digest_here(state):
        state.ask_at_ns = 0
    elif not state.ask_at_ns:
        state.ask_at_ns = max(
            now_ns + ASK_AFTER_NS + ask_jitter_ns(state.node_id), state.ask_not_before_ns
        )


def _desired_came(state: State, desired: Desired) -> None:
    """Everything up to `seq` is in it: what is not wanted there ends, what is newer is
    left alone.
    """
    old = (
        desired.epoch < state.epoch
        or desired.incarnation != state.incarnation
        or desired.seq < state.desired_seq
    )
    if old or state.lost:
        return
    state.epoch, state.desired_seq = desired.epoch, desired.seq
    dc.replaced(state.controls, state.devices, desired.controls, desired.seq)
    orders: tuple[Order, ...] = (*desired.starts, *desired.stops)
    for order in orders:
        _obey(state, order)
    wanted = {attempt_key(order.job_id, order.attempt) for order in orders}
    for key, attempt in state.attempts.items():
        if attempt.seq <= desired.seq and key not in wanted:
            _stop(state, key, attempt, Stop("not_wanted", SIGTERM, UNWANTED_GRACE_MS))


def _attempt_saw(attempt: Attempt, seen: o.OfAttempt, now_ns: int) -> None:
    match seen:
        case o.JobLaunched():
            if attempt.phase == LAUNCHING:
                attempt.phase = LAUNCHED
        case o.LaunchFailed():
            if attempt.phase == LAUNCHING:
                attempt.phase, attempt.refusal = REFUSED, seen.reason
        case o.ProcessStarted():
            attempt.executed, attempt.pid, attempt.began_ns, attempt.isolation = (
                True,
                seen.pid,
                seen.began_ns,
                seen.isolation,
            )
        case o.ProcessExited():
            if attempt.exit is None:
                attempt.phase, attempt.exit, attempt.exited_ns = EXITED, seen.exit, now_ns
                attempt.executed = attempt.executed or seen.exit.executed
        case o.ReleaseChecked():
            attempt.checking, attempt.checks = False, seen.checks
            attempt.clean, attempt.unclean = seen.clean, seen.unclean
        case o.Probed():
            if attempt.health is not None:
                serving.answered(attempt.health, seen.wrong, now_ns)
        case o.ReplicaAnswered():
            if attempt.health is not None:
                serving.served(attempt.health)
        case o.Checkpointed():
            attempt.checkpointed_ns = max(attempt.checkpointed_ns, seen.at_ns)
        case o.JobLooked():
            if attempt.hang is not None:
                hangs.looked(attempt.hang, seen.busy, seen.signs, now_ns)
        case o.ShareLooked():
            if attempt.share is not None:
                shares.looked(attempt.share, seen.used, now_ns)
        case _:
            assert_never(seen)


def _facts_stored(state: State, seq: int, marks: tuple[o.Mark, ...]) -> None:
    state.acked_seq, state.unstored = max(state.acked_seq, seq), state.unstored - 1
    for mark in marks:
        attempt = state.attempts.get(mark.key)
        if attempt is not None:
            attempt.stored = max(attempt.stored, mark.level)
            if attempt.stored == OVER_LEVEL:
                _leave(state, mark.key, attempt)


def _leave(state: State, key: str, attempt: Attempt) -> None:
    del state.attempts[key]
    state.timers.pop(key, None)
    state.touched.pop(key, None)
    state.over[key] = None
    if len(state.over) > OVER_KEPT:
        del state.over[next(iter(state.over))]
    if attempt.phase == EXITED:
        state.to_forget.append(attempt)
