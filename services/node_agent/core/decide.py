"""The agent's decisions: the actions that the state and the time require.

Pure and deterministic: attempts are handled in the order in which they were touched. `decide` asks
for each action once and notes that in the state. Rules: nothing starts without a valid lease, or
twice; an attempt that was stopped before it started never starts; facts are recorded in order, and
facts that are ready together form one commit; a directory is closed only after the attempt's last
fact is acknowledged. The facts of an attempt: `attempt_facts.py`. Tests:
tests/unit/test_agent_decide.py.
"""

from typing import Final

from libs.common.devices.partition import on_cards_of
from libs.common.facts import NodeFact, WatchdogChanged
from libs.common.reasons import BY_THE_AGENT, NODE_LOST, OVER_SHARE, STOPPED
from services.node_agent.core import actions as a
from services.node_agent.core import controls as dc
from services.node_agent.core import devices as d
from services.node_agent.core import hangs, keeping, kept_devices, serving, shares
from services.node_agent.core import state as s
from services.node_agent.core.attempt import SIGTERM, limit_at_ns, stop_at_limit
from services.node_agent.core.attempt_facts import (
    checkpoint_due_ns,
    end_due_ns,
    is_released,
    ready_facts,
    running_health,
    start_due_ns,
    unchecked_due_ns,
)
from services.node_agent.core.batch import elements_due_ns
from services.node_agent.core.observations import Mark
from services.node_agent.core.state import Attempt, State

MS: Final = 1_000_000
# Supervisors end their jobs two seconds before the deadline, so no job starts with less than this.
LEASE_SLACK_NS: Final = 100 * MS
# The supervisor kills at the end of the grace. If the job is alive so much later, the agent asks
# for KILL, and asks again after KILL_AGAIN_NS.
KILL_SLACK_NS: Final = 3_000 * MS
KILL_AGAIN_NS: Final = 5_000 * MS
CHECK_AGAIN_NS: Final = 500 * MS
ASK_EVERY_NS: Final = 1_000 * MS
# Facts of attempts in one commit. As many device errors and one fact per device may join them.
RECORD_FACTS_MAX: Final = 128


def decide(state: State, now_ns: int) -> list[a.Action]:
    """Return all actions that are possible now.

    Call it again after each observation and at `next_due_ns`. A changed node registers again before
    it records anything about its devices, but only when all its earlier facts are acknowledged: the
    next incarnation does not account for attempts whose end the log has.
    """
    if state.changed and not state.lost and not state.unstored:
        state.changed = False
        return [a.RegisterAgain("its devices have changed")]
    actions = [*_write_lease(state), *(a.ProbeFabric(order) for order in state.probes)]
    state.probes = []
    facts: list[NodeFact] = []
    marks: list[Mark] = []
    actions += _device_actions(state, now_ns)
    for key in _due(state, now_ns):
        if len(facts) >= RECORD_FACTS_MAX:
            state.touched[key] = None
            continue
        attempt = state.attempts[key]
        actions += _advance(state, key, attempt, now_ns)
        ready = ready_facts(state, attempt, now_ns)
        if ready:
            facts += ready
            marks.append(Mark(key, attempt.queued))
        _set_timer(state, key, attempt, now_ns)
    # Device facts go first, so that the end of a job never frees a bad device.
    of_devices = [] if state.changed else d.facts(state.devices, state.node_id, RECORD_FACTS_MAX)
    if of_devices or state.devices.unsaved:
        actions.append(a.KeepDevices(kept_devices.encode(state.devices)))
    actions += [a.KeepData(order, gone) for order, gone in keeping.take_due(state.keeps)]
    of_controls = [] if state.changed else dc.facts(state.controls)
    of_node = [*_guard_facts(state), *of_devices]
    facts = [*of_node, *of_controls, *keeping.facts(state.keeps), *facts]
    if facts:
        state.unstored += 1
        actions.append(a.Record(tuple(facts), tuple(marks)))
    return actions + _forget(state) + _ask_desired(state, now_ns) + _register_again(state)


def lease_needed_ns(state: State) -> int:
    """Return the rest of the lease below which a job would have to end as soon as it starts."""
    return state.lease_notice_ns + LEASE_SLACK_NS


def _guard_facts(state: State) -> list[NodeFact]:
    """Return the fact about the watchdogs, if the log does not know it."""
    if state.guard == state.guard_recorded:
        return []
    state.guard_recorded = state.guard
    return [watchdog_fact(state)]


def watchdog_fact(state: State) -> WatchdogChanged:
    """Return what is known of the watchdogs as a fact."""
    return WatchdogChanged(
        state.node_id,
        state.incarnation,
        missing=state.guard.missing,
        armed_ms=state.guard.armed_ms,
    )


def next_due_ns(state: State) -> int | None:
    """Return when `decide` must be called although nothing happens; 0 or the past means now, None
    never.
    """
    of_devices = state.devices.unrecorded and not state.changed
    if state.touched or of_devices or state.keeps.unrecorded:
        return 0
    times = [
        *state.timers.values(),
        *filter(None, (state.ask_at_ns, state.devices.breaker_closes_ns)),
    ]
    return min(times, default=None)


def _due(state: State, now_ns: int) -> list[str]:
    """Return the attempts to consider now, and clear `touched`."""
    rung = [key for key, at_ns in state.timers.items() if at_ns <= now_ns]
    due = list(dict.fromkeys([*state.touched, *rung]))
    state.touched.clear()
    return due


def _write_lease(state: State) -> list[a.Action]:
    """Return the lease to write, if it changed.

    A heartbeat reports `lease_written_epoch`, so the service writes the lease first and before it
    sends anything.
    """
    deadline_ns, newer = state.lease_deadline_ns, state.lease_epoch > state.lease_written_epoch
    if not newer and deadline_ns <= state.lease_written_ns:
        return []
    state.lease_written_ns, state.lease_written_epoch = deadline_ns, state.lease_epoch
    kind = a.ReplaceLease if newer else a.ExtendLease
    return [kind(deadline_ns, state.lease_notice_ns)]


def _device_actions(state: State, now_ns: int) -> list[a.Action]:
    """Return the devices to control and to reset now.

    A device is free for a reset once no attempt here needs it.
    """
    if not state.devices.troubles and not state.controls.todo:
        state.devices.breaker_closes_ns = 0
        return []
    had = [
        uuid
        for attempt in state.attempts.values()
        if attempt.phase != s.REFUSED
        for uuid in attempt.gpus
    ]
    held = on_cards_of([*state.devices.troubles, *(uuid for uuid, _ in state.controls.todo)], had)
    orders = [
        a.ControlDevice(order)
        for order in dc.take_due(state.controls, state.devices, state.node_id, held)
    ]
    taken = on_cards_of(state.devices.troubles, [*had, *state.controls.busy])
    resets = d.begin_resets(state.devices, taken, now_ns)
    for uuid in resets:
        dc.reset_begins(state.controls, state.devices, uuid)
    return [
        *orders,
        *(
            a.ResetDevice(uuid, why, dc.lasting_orders(state.controls, uuid))
            for uuid, why in resets.items()
        ),
    ]


def _advance(state: State, key: str, attempt: Attempt, now_ns: int) -> list[a.Action]:
    """Return the actions that bring one attempt nearer to its desired state."""
    if attempt.phase == s.WAITING:
        return _start_or_refuse(state, attempt, now_ns)
    if attempt.phase == s.LAUNCHED:
        return (
            _probe(attempt, now_ns)
            + _save_evidence(attempt)
            + _enforce_share(state, attempt)
            + _end_or_kill(state, attempt, now_ns)
        )
    if attempt.phase == s.EXITED:
        return _check_release(state, attempt, now_ns)
    return []


def _start_or_refuse(state: State, attempt: Attempt, now_ns: int) -> list[a.Action]:
    """Start a waiting attempt, refuse it, or wait for a longer lease."""
    if attempt.stop is not None or state.lost:
        attempt.phase = s.REFUSED
        attempt.refusal = attempt.stop.reason if attempt.stop is not None else NODE_LOST
        return []
    if away := d.unavailable_reason(state.devices, attempt.gpus, attempt.joins_gpus):
        attempt.phase, attempt.refusal = s.REFUSED, f"a GPU of it is away: {away}"
        return []
    if attempt.order is None or state.lease_deadline_ns < now_ns + lease_needed_ns(state):
        return []
    attempt.phase = s.LAUNCHING
    return [a.StartJob(attempt.order)]


def _probe(attempt: Attempt, now_ns: int) -> list[a.Action]:
    """Probe a replica if it is time; stop it if it was not ready for too long."""
    health = running_health(attempt)
    if health is None:
        return []
    if given_up := serving.end_reason(health, now_ns):
        attempt.stop = s.Stop(given_up, SIGTERM, health.probe.grace_s * 1_000)
        return []
    if not serving.begin_probe(health, now_ns):
        return []
    probe = health.probe
    return [a.ProbeReplica(attempt.ref, probe.port, probe.path, probe.answer_s, keyed=probe.keyed)]


def _save_evidence(attempt: Attempt) -> list[a.Action]:
    """Return the action that saves the evidence of a hang. `apply` then stops the job."""
    if attempt.hang is None or attempt.stop is not None or not hangs.begin_saving(attempt.hang):
        return []
    return [
        a.SaveEvidence(attempt.ref, attempt.gpus, f"no progress for {attempt.hang.timeout_s} s")
    ]


def _enforce_share(state: State, attempt: Attempt) -> list[a.Action]:
    """Stop an attempt that used more memory than its share for too long."""
    why = (
        shares.end_reason(attempt.share, state.devices.policy.share_grace_s)
        if attempt.share is not None
        else ""
    )
    if why and attempt.stop is None:
        attempt.stop = s.Stop(OVER_SHARE, SIGTERM, attempt.grace_s * 1_000, why)
    return []


def _end_or_kill(state: State, attempt: Attempt, now_ns: int) -> list[a.Action]:
    """Send the stop in force to the supervisor, or KILL if the time is over."""
    if 0 < limit_at_ns(attempt) <= now_ns:
        stop_at_limit(attempt)
    overdue = attempt.kill_at_ns and now_ns >= attempt.kill_at_ns
    if overdue or (state.lost and not attempt.killing and not attempt.ignore_lease):
        attempt.killing, attempt.kill_at_ns = True, now_ns + KILL_AGAIN_NS
        return [a.KillJob(attempt.ref)]
    if attempt.stop is None or attempt.stop_sent == attempt.stop:
        return []
    if attempt.stop_sent is None:
        attempt.checkpoint_at_stop_ns = attempt.checkpointed_ns
    attempt.stop_sent = attempt.stop
    attempt.kill_at_ns = now_ns + attempt.stop.grace_ms * MS + KILL_SLACK_NS
    return [a.StopJob(attempt.ref, attempt.stop.signal, attempt.stop.grace_ms)]


def _check_release(state: State, attempt: Attempt, now_ns: int) -> list[a.Action]:
    """Ask for the release check of an attempt that exited, unless one runs or it is too soon."""
    if attempt.checking or is_released(state, attempt, now_ns) or now_ns < attempt.check_at_ns:
        return []
    assert attempt.exit is not None, "an attempt that exited has its exit"
    attempt.checking, attempt.check_at_ns = True, now_ns + CHECK_AGAIN_NS
    failed, cut = attempt.exit.exit_code != 0, bool(attempt.slices)
    return [
        a.CheckRelease(
            ref=attempt.ref,
            gpus=attempt.gpus,
            processes_gone=attempt.exit.clean,
            failed=failed,
            began_ns=attempt.began_ns,
            cut=cut,
        )
    ]


def _set_timer(state: State, key: str, attempt: Attempt, now_ns: int) -> None:
    """Set when this attempt must be considered again; remove the timer if it waits only for
    observations.
    """
    times: list[int] = []
    if attempt.phase == s.LAUNCHED and attempt.kill_at_ns:
        times.append(attempt.kill_at_ns)
    if attempt.phase == s.LAUNCHED and limit_at_ns(attempt) > now_ns:
        times.append(limit_at_ns(attempt))
    if (health := running_health(attempt)) is not None:
        times += serving.due_times_ns(health)
    for due_ns in (
        checkpoint_due_ns(attempt),
        elements_due_ns(attempt),
        start_due_ns(attempt),
    ):
        if due_ns is not None:
            times.append(due_ns)
    if attempt.queued < s.FINISHED_LEVEL and (alone_ns := end_due_ns(attempt)) is not None:
        times.append(alone_ns)
    checked = attempt.checks is not None and not attempt.checking
    if attempt.phase == s.EXITED and checked and attempt.queued < s.OVER_LEVEL:
        times.append(
            min(max(attempt.check_at_ns, now_ns + 1), attempt.exited_ns + state.release_ns)
        )
    if attempt.phase == s.EXITED and attempt.checks is None and attempt.queued < s.OVER_LEVEL:
        times.append(unchecked_due_ns(state, attempt))
    if times:
        state.timers[key] = min(times)
    else:
        state.timers.pop(key, None)


def _forget(state: State) -> list[a.Action]:
    """Close the directories of attempts that left the state."""
    actions: list[a.Action] = [
        a.ForgetJob(
            ref=attempt.ref,
            rank=attempt.rank,
            streams=_streams(attempt),
            healthy=_ended_healthy(attempt),
            ready_ms=attempt.ready_ms,
        )
        for attempt in state.to_forget
    ]
    state.to_forget.clear()
    return actions


def _ended_healthy(attempt: Attempt) -> bool:
    """Return whether a replica answered its probes until it was stopped, or exited with 0.

    Only such a replica may leave compile products for others.
    """
    end, health = attempt.exit, attempt.health
    if end is None or health is None or health.ready is not True or attempt.hit is not None:
        return False
    own = attempt.stop is not None and attempt.stop.reason in BY_THE_AGENT
    return end.exit_code == 0 or (end.reason == STOPPED and not own)


def _streams(attempt: Attempt) -> tuple[str, ...]:
    """Return the output streams that are not empty."""
    assert attempt.exit is not None, "only an attempt that exited has a directory to forget"
    sizes = {"stdout": attempt.exit.stdout_bytes, "stderr": attempt.exit.stderr_bytes}
    return tuple(stream for stream, size in sizes.items() if size)


def _ask_desired(state: State, now_ns: int) -> list[a.Action]:
    """Ask for the desired state, if the digests still differ."""
    if not state.ask_at_ns or now_ns < state.ask_at_ns:
        return []
    state.ask_at_ns = 0
    if state.lost or state.lease_digest == s.local_digest(state):
        return []
    state.ask_not_before_ns = now_ns + ASK_EVERY_NS
    return [a.AskDesired()]


def _register_again(state: State) -> list[a.Action]:
    """Register a new incarnation once nothing of a lost node runs."""
    if not state.lost or state.ended or not all(map(s.goes_on, state.attempts.values())):
        return []
    state.ended = True
    return [a.RegisterAgain("the scheduler declared this node lost")]
