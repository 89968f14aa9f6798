"""Apply observations to the state of the agent's core.

Pure. Guards decide here which orders, leases and desired states count: those of an older epoch, of
another incarnation or of an older sequence are ignored. Tests: tests/unit/test_agent_decide.py.
"""

import hashlib
from typing import Final, assert_never

from libs.common.devices import error_catalogue as e
from libs.common.devices import mig
from libs.common.devices.error_catalogue import DRAIN_THEN_RESET, ENDS_JOBS
from libs.common.messages import Desired, Lease, Order, Orders, StartOrder, StopOrder
from libs.common.model import GpuId, attempt_key, attempt_of
from libs.common.reasons import HUNG, MPS_LOST
from libs.common.timing import notice_ms
from services.node_agent.core import controls as dc
from services.node_agent.core import devices as d
from services.node_agent.core import hangs, hits, keeping, serving, shares, standby
from services.node_agent.core import observations as o
from services.node_agent.core.attempt import SIGTERM, shorter_stop
from services.node_agent.core.attempt import Attempt as Attempt
from services.node_agent.core.attempt import Stop as Stop
from services.node_agent.core.devices import HOT
from services.node_agent.core.state import (
    EXITED,
    FINISHED_LEVEL,
    LAUNCHED,
    LAUNCHING,
    MS,
    OVER_LEVEL,
    REFUSED,
    WAITING,
    State,
    is_used_again,
    key_of,
    local_digest,
)
from services.node_agent.core.use_round import note_round
from services.node_agent.drivers.readings import WEDGED

ATTEMPTS_MAX: Final = 8_192
OVER_KEPT: Final = 20_000
USED_AGAIN: Final = "this node ran an attempt of this number before the cluster was restored"
# Ordered probes that wait for the agent. A node is in one pair of a round.
PROBES_MAX: Final = 4
# Time between TERM and KILL for an attempt that the desired state does not contain.
UNWANTED_GRACE_MS: Final = 5_000
# A bit mask of all memory slices of a device.
WHOLE: Final = -1
# Short, because a job cannot save anything from a failed device.
HIT_GRACE_MS: Final = 1_000
# The agent waits before it asks about a difference: an order may be on its way.
ASK_AFTER_NS: Final = 20 * MS
ASK_JITTER_NS: Final = 200 * MS


def ask_jitter_ns(node_id: str) -> int:
    """Return this node's own delay, so that a thousand nodes do not ask at once."""
    return (
        int.from_bytes(hashlib.blake2b(node_id.encode(), digest_size=4).digest(), "big")
        % ASK_JITTER_NS
    )


def apply(state: State, seen: o.Observation, now_ns: int) -> None:
    """Change the state by one observation. `decide` derives the actions."""
    match seen:
        case o.OrdersReceived(orders):
            _orders_came(state, orders)
        case o.LeaseReceived(lease, incarnation, sent_boot_ns):
            if incarnation == state.incarnation and lease.epoch >= state.epoch:
                _lease_came(state, lease, sent_boot_ns, now_ns)
        case o.DesiredReceived(desired):
            _desired_came(state, desired)
        case o.FactsStored(seq, marks):
            _facts_stored(state, seq, marks)
        case o.ShareLost(key, detail):
            if key in state.attempts:
                state.attempts[key].hit = hits.Hit(MPS_LOST, detail)
                _stop(state, key, state.attempts[key], Stop(MPS_LOST, SIGTERM, HIT_GRACE_MS))
        case o.UseSampled():
            note_round(state, seen, now_ns)
        case o.EvidenceSaved(key, where):
            _evidence_saved(state, key, where)
        case o.DeviceErrorSeen():
            _device_erred(state, seen, now_ns)
        case o.DeviceTroubleChanged(uuid, reason, trouble, checks):
            if reason == HOT:
                dc.note_heat(state.controls, uuid, trouble is not None)
            d.change_trouble(
                devices=state.devices, uuid=uuid, reason=reason, trouble=trouble, checks=checks
            )
            if trouble is None and reason == WEDGED:  # its driver process was restarted
                dc.repeat_lasting(state.controls, uuid)
        case o.DeviceReset():
            dc.note_reset(state.controls, state.devices, state.node_id, seen)
        case o.GuardChanged():
            state.guard = seen
        case o.DevicesListed(modes, changed):
            state.controls.modes, state.changed = modes, state.changed or changed
        case o.KeepSeen():
            keeping.note_seen(state.keeps, state.node_id, seen)
        case o.KeepHeld(entries):
            keeping.note_held(state.keeps, entries)
        case o.KeepDone(model, tier):
            keeping.note_done(state.keeps, model, tier)
        case o.DeviceControlled(order):
            dc.note_outcome(state.controls, state.devices, state.node_id, order)
        case _:
            if (attempt := state.attempts.get(seen.key)) is not None:
                state.touched[seen.key] = None
                _attempt_changed(attempt, seen, now_ns)


def _device_erred(state: State, seen: o.DeviceErrorSeen, now_ns: int) -> None:
    """Record a device error, mark the attempts that it hits, and stop those that cannot go on."""
    judged = d.judge(state.devices, seen.error)
    hit = [
        state.attempts[key]
        for key in hits.attempts_hit(
            judged, _attempts_in_reach(state, judged.reach, seen), seen.key
        )
    ]
    refs, shadow = tuple(attempt.ref for attempt in hit), state.devices.policy.shadow
    fact = hits.error_fact(
        node_id=state.node_id,
        uuid=seen.uuid,
        judged_as=(seen.error.error, judged.verdict, seen.source),
        refs=refs,
        shadow=shadow,
        text=seen.error.text,
    )
    if not d.note_error(state.devices, fact, now_ns, judged.reach):
        return
    for attempt in hit:
        attempt.hit = hits.worse_hit(
            attempt.hit, judged, f"{fact.error} of GPU {fact.uuid}: {fact.detail}".rstrip(": ")
        )
        if attempt.hit is not None and judged.verdict in ENDS_JOBS:
            _stop(
                state, key_of(attempt.ref), attempt, Stop(attempt.hit.reason, SIGTERM, HIT_GRACE_MS)
            )


def _evidence_saved(state: State, key: str, where: str) -> None:
    """Stop a job that still hangs, and note the hang on its devices.

    The devices are reset once they are free. A job that ended in the meantime did not hang.
    """
    attempt, shadow = state.attempts.get(key), state.devices.policy.shadow
    if (
        attempt is None
        or attempt.phase != LAUNCHED
        or attempt.hang is None
        or not hangs.evidence_saved(attempt.hang, where)
    ):
        return
    _stop(state, key, attempt, Stop(HUNG, SIGTERM, HIT_GRACE_MS, attempt.hang.detail))
    for uuid in attempt.gpus:
        judged_as = (hangs.ERROR, DRAIN_THEN_RESET, hangs.SOURCE)
        d.note_hang(
            state.devices,
            hits.error_fact(
                node_id=state.node_id,
                uuid=uuid,
                judged_as=judged_as,
                refs=(attempt.ref,),
                shadow=shadow,
                text=attempt.hang.detail,
            ),
        )


def _attempts_in_reach(state: State, reach: e.Reach, seen: o.DeviceErrorSeen) -> list[str]:
    """Return the attempts that have the device and that an error of this reach may hit."""
    having = [(key, state.attempts[key]) for key in _attempts_on(state, seen.uuid)]
    if reach == e.INSTANCE and seen.slices is not None:
        return [
            key for key, attempt in having if attempt.slices.get(seen.uuid, WHOLE) & seen.slices
        ]
    if reach == e.FABRIC:
        return [key for key, attempt in having if attempt.joins_gpus]
    return [key for key, _ in having] if reach != e.NEW_WORK else []


def _attempts_on(state: State, uuid: GpuId) -> list[str]:
    """Return the attempts that were launched on a device and whose end is not recorded yet."""
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
    dc.add_orders(state.controls, orders.controls)
    state.probes = [*state.probes, *orders.probes][-PROBES_MAX:]
    if orders.keeps is not None:
        keeping.replace_list(state.keeps, orders.keeps.seq, orders.keeps.entries)
    for order in orders.orders:
        if order.seq > state.desired_seq:
            _accept_order(state, order)


def _accept_order(state: State, order: Order) -> None:
    """Note one order. An attempt that has left does not start; a new one of its number is refused,
    so that the job gets another number.
    """
    key = attempt_key(order.job_id, order.attempt)
    if key in state.over:
        again = Attempt(ref=attempt_of(key), phase=REFUSED, seq=order.seq, refusal=USED_AGAIN)
        if is_used_again(state, key, order) and _add_attempt(state, key, again) is not None:
            del state.over[key]
        return
    attempt = state.attempts.get(key)
    match order:
        case StartOrder():
            _accept_start(state, key, attempt, order)
        case StopOrder():
            if attempt is None:
                stopped = Attempt(ref=attempt_of(key), phase=WAITING, seq=order.seq)
                attempt = _add_attempt(state, key, stopped)
            if attempt is not None:
                wanted = Stop(order.reason, order.signal, order.grace_ms)
                attempt.ordered = shorter_stop(attempt.ordered, wanted)
                _stop(state, key, attempt, wanted)
        case _:
            assert_never(order)


def _accept_start(state: State, key: str, attempt: Attempt | None, order: StartOrder) -> None:
    """Note a start order.

    A new attempt must be ordered for this incarnation. An attempt that was found on disk only
    learns what its marker does not say, until its last fact is recorded.
    """
    if attempt is None and order.incarnation == state.incarnation:
        attempt = _add_attempt(state, key, Attempt(ref=attempt_of(key), phase=WAITING))
    if attempt is None or attempt.order is not None or attempt.queued == OVER_LEVEL:
        return
    attempt.order, attempt.seq, attempt.rank = order, order.seq, order.rank
    attempt.gpus = tuple(hold.uuid for hold in order.gpus)
    attempt.slices = mig.slices_of(order.gpus)
    attempt.time_limit_s, attempt.grace_s, attempt.ignore_lease = (
        order.spec.time_limit_s,
        order.spec.grace_s,
        order.spec.ignores_lease,
    )
    attempt.hang = attempt.hang or hangs.hang_of(order.spec.hang_timeout_s)
    attempt.share = attempt.share or shares.share_of(order.gpus)
    attempt.standby = attempt.standby or standby.standby_of(order)
    if attempt.health is None:
        attempt.health = (
            serving.new_health if attempt.phase == WAITING else serving.adopted_health
        )(serving.probe_of(order))
    state.touched[key] = None


def _add_attempt(state: State, key: str, attempt: Attempt) -> Attempt | None:
    """Add an attempt; return None if the node has too many."""
    if len(state.attempts) >= ATTEMPTS_MAX:
        return None  # the next digest differs, so the desired state brings it again
    state.attempts[key] = attempt
    state.touched[key] = None
    return attempt


def _stop(state: State, key: str, attempt: Attempt, wanted: Stop) -> None:
    """Set the stop in force, if the new one leaves less time."""
    before, attempt.stop = attempt.stop, shorter_stop(attempt.stop, wanted)
    if attempt.stop is not before:
        state.touched[key] = None


def _lease_came(state: State, lease: Lease, sent_boot_ns: int, now_ns: int) -> None:
    """Extend or replace the lease, note that the node is lost, and compare the digests.

    The lease counts from the moment the heartbeat was sent, so an older answer never shortens it.
    The lease of a newer term replaces it. An agent that has just started knows no term, so the
    deadline in the lease file stays until the first lease.
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
        state.lease_notice_ns = notice_ms(lease.lease_ms) * MS
        state.touched.update(
            (key, None) for key, attempt in state.attempts.items() if attempt.phase == WAITING
        )
    if lease.seq < state.acked_seq:
        return  # the scheduler has not read our last facts
    state.lease_digest = lease.digest
    if lease.digest == local_digest(state):
        state.ask_at_ns = 0
    elif not state.ask_at_ns:
        state.ask_at_ns = max(
            now_ns + ASK_AFTER_NS + ask_jitter_ns(state.node_id), state.ask_not_before_ns
        )


def _desired_came(state: State, desired: Desired) -> None:
    """Compare the attempts with the full desired state, and stop those that it does not contain.

    It contains everything up to `seq`; newer attempts stay as they are.
    """
    old = (
        desired.epoch < state.epoch
        or desired.incarnation != state.incarnation
        or desired.seq < state.desired_seq
    )
    if old or state.lost:
        return
    state.epoch, state.desired_seq = desired.epoch, desired.seq
    dc.replace_orders(state.controls, state.devices, desired.controls, desired.seq)
    keeping.replace_list(state.keeps, desired.seq, desired.keeps)
    orders: tuple[Order, ...] = (*desired.starts, *desired.stops)
    for order in orders:
        _accept_order(state, order)
    wanted = {attempt_key(order.job_id, order.attempt) for order in orders}
    for key, attempt in state.attempts.items():
        if attempt.seq <= desired.seq and key not in wanted:
            _stop(state, key, attempt, Stop("not_wanted", SIGTERM, UNWANTED_GRACE_MS))


def _attempt_changed(attempt: Attempt, seen: o.AttemptObservation, now_ns: int) -> None:
    """Change one attempt by what was observed of it."""
    match seen:
        case o.JobLaunched():
            if attempt.phase == LAUNCHING:
                attempt.phase = LAUNCHED
        case o.LaunchFailed():
            if attempt.phase == LAUNCHING:
                attempt.phase, attempt.refusal = REFUSED, seen.reason
        case o.ProcessStarted():
            attempt.executed, attempt.pid, attempt.began_ns = True, seen.pid, seen.began_ns
            attempt.isolation = seen.isolation
            attempt.image, attempt.image_in_registry = seen.image, seen.in_registry
        case o.ProcessExited():
            if attempt.exit is None:
                attempt.phase, attempt.exit, attempt.exited_ns = EXITED, seen.exit, now_ns
                attempt.executed = attempt.executed or seen.exit.executed
        case o.ReleaseChecked():
            attempt.checking, attempt.checks = False, seen.checks
            attempt.clean, attempt.unclean = seen.clean, seen.unclean
        case o.Probed():
            if attempt.health is not None:
                serving.note_probe(attempt.health, seen.wrong, now_ns)
                if attempt.health.ready and attempt.began_ns and not attempt.ready_ms:
                    attempt.ready_ms = max(1, (now_ns - attempt.began_ns) // MS)
        case o.ReplicaAnswered():
            if attempt.health is not None:
                serving.note_request(attempt.health)
        case o.StandbySeen():
            standby.follow(attempt.standby, attempt.health, seen)
        case o.Checkpointed():
            attempt.checkpointed_ns = max(attempt.checkpointed_ns, seen.at_ns)
        case o.ElementsSeen():
            attempt.elements = seen
        case o.ProgressSampled():
            if attempt.hang is not None:
                hangs.note_sample(attempt.hang, seen.busy, seen.signs, now_ns)
        case o.ShareSampled():
            if attempt.share is not None:
                shares.note_sample(attempt.share, seen.used, now_ns)
        case _:
            assert_never(seen)


def _facts_stored(state: State, seq: int, marks: tuple[o.Mark, ...]) -> None:
    """Note an acknowledged commit; attempts whose last fact is stored leave the state."""
    state.acked_seq, state.unstored = max(state.acked_seq, seq), state.unstored - 1
    for mark in marks:
        if (attempt := state.attempts.get(mark.key)) is not None:
            attempt.stored = max(attempt.stored, mark.level)
            if attempt.stored == OVER_LEVEL:
                _leave(state, mark.key, attempt, seq)


def _leave(state: State, key: str, attempt: Attempt, seq: int) -> None:
    """Drop an attempt, keep its key in `over`, and have its directory closed if it ran."""
    del state.attempts[key]
    state.timers.pop(key, None)
    state.touched.pop(key, None)
    state.over[key] = seq
    if len(state.over) > OVER_KEPT:
        del state.over[next(iter(state.over))]
    if attempt.phase == EXITED:
        state.to_forget.append(attempt)
