"""What follows from what the agent knows: `decide` asks the state, never the message that arrived.

Pure and deterministic: attempts in the order in which they were touched. Each action is asked for
once; `decide` notes in the state what it has asked for. Rules: nothing starts without a valid
lease, or twice; what was stopped before it began never begins; facts are recorded in order, those
that are ready together in one commit; a directory is forgotten only after its last fact is
acknowledged. Tests: tests/unit/test_agent_decide.py.
"""

from typing import Final

from libs.common import facts as f
from libs.common.devices.partition import on_cards_of
from libs.common.facts import NodeFact
from libs.common.life.job_life import CANCELLED
from libs.common.model import NodeId
from libs.common.reasons import BY_THE_AGENT, NODE_LOST, OVER_SHARE, STOPPED, TIME_LIMIT
from services.node_agent.core import actions as a
from services.node_agent.core import controls as dc
from services.node_agent.core import devices as d
from services.node_agent.core import hangs, serving, shares
from services.node_agent.core import state as s
from services.node_agent.core.observations import Exit, Mark
from services.node_agent.core.serving import Health
from services.node_agent.core.state import Attempt, State

MS: Final = 1_000_000
# A supervisor ends its job two seconds before the deadline: with less than this left, nothing is
# begun.
LEASE_NEEDED_NS: Final = 2_100 * MS
# KILL is the supervisor's at the end of the grace; when it has not come so much later, it is asked
# for again and again.
KILL_SLACK_NS: Final = 3_000 * MS
KILL_AGAIN_NS: Final = 5_000 * MS
# JobFinished waits this long for the release check, so that both usually go in one commit.
FINISHED_ALONE_NS: Final = 20 * MS
CHECK_AGAIN_NS: Final = 500 * MS
ASK_EVERY_NS: Final = 1_000 * MS
# A job may save its work at each step; the log hears of it so often.
CHECKPOINT_EVERY_NS: Final = 30_000 * MS
# Facts of attempts; as many errors of devices may come beside them, and one fact of each device.
RECORD_FACTS_MAX: Final = 128
# What a look finds when nothing of a job's processes is left.
PROCESSES: Final = "processes"
GONE: Final = "gone"


def decide(state: State, now_ns: int) -> list[a.Action]:
    """All that can be done now.

    Call again after any observation, and at `next_due_ns`. What a node is goes before what it says
    of its devices, and behind what it has said: the next incarnation accounts for no attempt whose
    end the log has.
    """
    if state.changed and not state.lost and not state.unstored:
        state.changed = False
        return [a.BeginAgain("its devices are others now")]
    asked = _write_lease(state)
    facts: list[NodeFact] = []
    marks: list[Mark] = []
    asked += _devices(state, now_ns)
    for key in _due(state, now_ns):
        if len(facts) >= RECORD_FACTS_MAX:
            state.touched[key] = None
            continue
        attempt = state.attempts[key]
        asked += _drive(state, key, attempt, now_ns)
        said = _ready_facts(state, attempt, now_ns)
        if said:
            facts += said
            marks.append(Mark(key, attempt.queued))
        _set_timer(state, key, attempt, now_ns)
    # What a device is goes first: nobody is placed on a bad one by the end of the job that had it.
    of_devices = [] if state.changed else d.facts(state.devices, state.node_id, RECORD_FACTS_MAX)
    if of_devices or state.devices.unkept:
        asked.append(a.KeepDevices(d.kept(state.devices)))
    facts = [*of_devices, *([] if state.changed else dc.facts(state.controls)), *facts]
    if facts:
        state.unstored += 1
        asked.append(a.Record(tuple(facts), tuple(marks)))
    return asked + _forget(state) + _ask_desired(state, now_ns) + _begin_again(state)


def next_due_ns(state: State) -> int | None:
    """When something must be looked at although nothing happens; 0 or the past means now, None
    never.
    """
    if state.touched or (state.devices.unsaid and not state.changed):
        return 0
    times = [*state.timers.values(), *filter(None, (state.ask_at_ns, state.devices.look_at_ns))]
    return min(times, default=None)


def _due(state: State, now_ns: int) -> list[str]:
    rung = [key for key, at_ns in state.timers.items() if at_ns <= now_ns]
    due = list(dict.fromkeys([*state.touched, *rung]))
    state.touched.clear()
    return due


def _write_lease(state: State) -> list[a.Action]:
    """A heartbeat names `lease_written_epoch`: the service carries this out first, and before it
    sends anything.
    """
    deadline_ns, newer = state.lease_deadline_ns, state.lease_epoch > state.lease_written_epoch
    if not newer and deadline_ns <= state.lease_written_ns:
        return []
    state.lease_written_ns, state.lease_written_epoch = deadline_ns, state.lease_epoch
    return [a.ReplaceLease(deadline_ns) if newer else a.ExtendLease(deadline_ns)]


def _devices(state: State, now_ns: int) -> list[a.Action]:
    """What devices are to be told, and which are to be reset: one that any attempt here is not over
    with is nobody's to reset.
    """
    if not state.devices.troubles and not state.controls.todo:
        state.devices.look_at_ns = 0
        return []
    had = [
        uuid
        for attempt in state.attempts.values()
        if attempt.phase != s.REFUSED
        for uuid in attempt.gpus
    ]
    held = on_cards_of([*state.devices.troubles, *(uuid for uuid, _ in state.controls.todo)], had)
    told = [
        a.ControlDevice(order)
        for order in dc.due(state.controls, state.devices, state.node_id, held)
    ]
    taken = on_cards_of(state.devices.troubles, [*had, *state.controls.busy])
    resets = d.begin_resets(state.devices, taken, now_ns)
    for uuid in resets:
        dc.is_reset(state.controls, state.devices, uuid)
    return [
        *told,
        *(
            a.ResetDevice(uuid, why, dc.lasting(state.controls, uuid))
            for uuid, why in resets.items()
        ),
    ]


def _drive(state: State, key: str, attempt: Attempt, now_ns: int) -> list[a.Action]:
    """Bring one attempt nearer to what is wanted of it."""
    if attempt.phase == s.WAITING:
        return _start_or_refuse(state, attempt, now_ns)
    if attempt.phase == s.LAUNCHED:
        return (
            _watch(attempt, now_ns)
            + _hang(attempt)
            + _keep_to_share(state, attempt)
            + _end(state, attempt, now_ns)
        )
    if attempt.phase == s.EXITED:
        return _check_release(state, attempt, now_ns)
    return []


def _start_or_refuse(state: State, attempt: Attempt, now_ns: int) -> list[a.Action]:
    if attempt.stop is not None or state.lost:
        attempt.phase = s.REFUSED
        attempt.refusal = attempt.stop.reason if attempt.stop is not None else NODE_LOST
        return []
    if away := d.out(state.devices, attempt.gpus, attempt.joins_gpus):
        attempt.phase, attempt.refusal = s.REFUSED, f"a GPU of it is away: {away}"
        return []
    if attempt.order is None or state.lease_deadline_ns < now_ns + LEASE_NEEDED_NS:
        return []
    attempt.phase = s.LAUNCHING
    return [a.StartJob(attempt.order)]


def _watched(attempt: Attempt) -> Health | None:
    """The health of a replica that runs and is not ending."""
    return (
        attempt.health
        if attempt.phase == s.LAUNCHED and attempt.executed and attempt.stop is None
        else None
    )


def _watch(attempt: Attempt, now_ns: int) -> list[a.Action]:
    """Probe a replica when it is time; end it when it was not ready for too long."""
    health = _watched(attempt)
    if health is None:
        return []
    if given_up := serving.look(health, now_ns):
        attempt.stop = s.Stop(given_up, s.SIGTERM, health.probe.grace_s * 1_000)
        return []
    return (
        [a.ProbeReplica(attempt.ref, health.probe.port, health.probe.path, health.probe.answer_s)]
        if serving.ask(health, now_ns)
        else []
    )


def _hang(attempt: Attempt) -> list[a.Action]:
    """What hangs is ended after its evidence is saved (`state.apply`)."""
    if attempt.hang is None or attempt.stop is not None or not hangs.ask(attempt.hang):
        return []
    return [
        a.SaveEvidence(attempt.ref, attempt.gpus, f"no progress for {attempt.hang.timeout_s} s")
    ]


def _keep_to_share(state: State, attempt: Attempt) -> list[a.Action]:
    """One that uses more than its part for too long is ended; how, `_end` says."""
    why = (
        shares.too_long(attempt.share, state.devices.policy.share_grace_s)
        if attempt.share is not None
        else ""
    )
    if why and attempt.stop is None:
        attempt.stop = s.Stop(OVER_SHARE, s.SIGTERM, attempt.grace_s * 1_000, why)
    return []


def _share_facts(state: State, attempt: Attempt, now_ns: int) -> list[NodeFact]:
    if (
        attempt.phase != s.LAUNCHED
        or attempt.share is None
        or (over := shares.warn(attempt.share, now_ns)) is None
    ):
        return []
    (job_id, number), grace_s = (
        (attempt.ref.job_id, attempt.ref.attempt),
        state.devices.policy.share_grace_s,
    )
    used, part = over.use.used_bytes, over.use.share_bytes
    told = f.JobOverShare(
        job_id=job_id,
        attempt=number,
        node_id=state.node_id,
        uuid=over.uuid,
        used_bytes=used,
        share_bytes=part,
        grace_s=grace_s,
    )
    return [told]


def _health_facts(attempt: Attempt, node_id: NodeId) -> list[NodeFact]:
    health, ref = _watched(attempt), attempt.ref
    if health is None or not serving.news(health):
        return []
    if health.ready:
        return [f.ReplicaReady(job_id=ref.job_id, attempt=ref.attempt, node_id=node_id)]
    return [
        f.ReplicaUnready(
            job_id=ref.job_id, attempt=ref.attempt, node_id=node_id, reason=health.wrong
        )
    ]


def _is_asked(attempt: Attempt) -> bool:
    """Whether its newest checkpoint came after it was told to stop."""
    return attempt.told is not None and attempt.checkpointed_ns > attempt.unasked_ns


def _checkpoint_due_ns(attempt: Attempt) -> int | None:
    """When its newest checkpoint is to be said: the first one, an answer and the last at once, the
    others not too often.

    None: never.
    """
    if attempt.checkpointed_ns <= attempt.checkpoint_said_ns or attempt.queued < s.STARTED_LEVEL:
        return None
    answers = _is_asked(attempt) and attempt.checkpoint_said_ns <= attempt.unasked_ns
    return 0 if answers or attempt.phase == s.EXITED else attempt.checkpoint_again_ns


def _checkpoint_facts(attempt: Attempt, node_id: NodeId, now_ns: int) -> list[NodeFact]:
    due_ns, at_ns, asked, ref = (
        _checkpoint_due_ns(attempt),
        attempt.checkpointed_ns,
        _is_asked(attempt),
        attempt.ref,
    )
    if due_ns is None or now_ns < due_ns:
        return []
    attempt.checkpoint_said_ns, attempt.checkpoint_again_ns = at_ns, now_ns + CHECKPOINT_EVERY_NS
    return [
        f.JobCheckpointed(
            job_id=ref.job_id, attempt=ref.attempt, node_id=node_id, asked=asked, at_ns=at_ns
        )
    ]


def _end_words(attempt: Attempt, end: Exit) -> tuple[str, str]:
    """A stop of the agent's own says more than that it was stopped."""
    stop = attempt.stop
    own = stop is not None and attempt.ordered is None and stop.reason in BY_THE_AGENT
    return (
        (stop.reason, stop.detail or end.detail)
        if own and stop is not None and end.reason == STOPPED
        else (end.reason, end.detail)
    )


def _end(state: State, attempt: Attempt, now_ns: int) -> list[a.Action]:
    if 0 < s.limit_at_ns(attempt) <= now_ns:
        s.stop_at_limit(attempt)
    overdue = attempt.kill_at_ns and now_ns >= attempt.kill_at_ns
    if overdue or (state.lost and not attempt.killing and not attempt.ignore_lease):
        attempt.killing, attempt.kill_at_ns = True, now_ns + KILL_AGAIN_NS
        return [a.KillJob(attempt.ref)]
    if attempt.stop is None or attempt.told == attempt.stop:
        return []
    if attempt.told is None:
        attempt.unasked_ns = attempt.checkpointed_ns
    attempt.told = attempt.stop
    attempt.kill_at_ns = now_ns + attempt.stop.grace_ms * MS + KILL_SLACK_NS
    return [a.StopJob(attempt.ref, attempt.stop.signal, attempt.stop.grace_ms)]


def _check_release(state: State, attempt: Attempt, now_ns: int) -> list[a.Action]:
    if attempt.checking or _released(state, attempt, now_ns) or now_ns < attempt.check_at_ns:
        return []
    assert attempt.exit is not None, "an attempt that exited has its exit"
    attempt.checking, attempt.check_at_ns = True, now_ns + CHECK_AGAIN_NS
    failed, cut = attempt.exit.exit_code != 0, bool(attempt.slices)
    return [
        a.CheckRelease(attempt.ref, attempt.gpus, attempt.exit.clean, failed, attempt.began_ns, cut)
    ]


def _released(state: State, attempt: Attempt, now_ns: int) -> bool:
    """Proved clean, or given up: what is not clean then is quarantined.

    That is at the limit, or at once where nothing is left but devices that will not answer before
    their machine was started again.
    """
    if attempt.checks is None:
        return False
    lost = (
        attempt.unclean
        and attempt.checks.get(PROCESSES) == GONE
        and all(d.is_gone(state.devices, uuid) for uuid in attempt.unclean)
    )
    return attempt.clean or bool(lost) or now_ns >= attempt.exited_ns + state.release_ns


def _ready_facts(state: State, attempt: Attempt, now_ns: int) -> list[NodeFact]:
    """The facts of one attempt that can be said now and were not, in their order."""
    said: list[NodeFact] = []
    ref, node_id = attempt.ref, state.node_id
    if attempt.phase == s.REFUSED and attempt.queued < s.OVER_LEVEL:
        attempt.queued = s.OVER_LEVEL
        return [
            f.JobRefused(
                job_id=ref.job_id, attempt=ref.attempt, node_id=node_id, reason=attempt.refusal
            )
        ]
    if attempt.executed and attempt.queued < s.STARTED_LEVEL:
        attempt.queued = s.STARTED_LEVEL
        said.append(_started(attempt, node_id))
    said += (
        _health_facts(attempt, node_id)
        + _checkpoint_facts(attempt, node_id, now_ns)
        + _share_facts(state, attempt, now_ns)
    )
    over = attempt.phase == s.EXITED and _released(state, attempt, now_ns)
    alone_ns = _alone_ns(attempt)
    ended = over or (alone_ns is not None and now_ns >= alone_ns)
    if ended and attempt.queued < s.FINISHED_LEVEL:
        attempt.queued = s.FINISHED_LEVEL
        said.append(_finished(state, attempt))
    if over and attempt.queued < s.OVER_LEVEL:
        attempt.queued = s.OVER_LEVEL
        said += _released_facts(state, attempt)
    return said


def _started(attempt: Attempt, node_id: NodeId) -> f.JobStarted:
    ref, pid, isolation = attempt.ref, attempt.pid, attempt.isolation
    return f.JobStarted(
        job_id=ref.job_id, attempt=ref.attempt, node_id=node_id, pid=pid, isolation=isolation
    )


def _alone_ns(attempt: Attempt) -> int | None:
    """When its end may be said without its release; None: not yet.

    One that failed waits for the first look at its devices, for their error may be why.
    """
    if attempt.phase != s.EXITED or attempt.exit is None:
        return None
    looked_at = (
        not attempt.gpus
        or attempt.exit.exit_code == 0
        or attempt.checks is not None
        or not attempt.checking
    )
    return attempt.exited_ns + FINISHED_ALONE_NS if looked_at else None


def _finished(state: State, attempt: Attempt) -> f.JobFinished:
    end = attempt.exit
    assert end is not None, "an attempt that exited has its exit"
    at_limit = (
        end.reason == STOPPED and attempt.told is not None and attempt.told.reason == TIME_LIMIT
    )
    reason, detail = (TIME_LIMIT, end.detail) if at_limit else _end_words(attempt, end)
    cancelled = (
        end.reason == STOPPED and attempt.told is not None and attempt.told.reason == CANCELLED
    )
    if attempt.hit is not None and end.exit_code != 0:
        reason, detail = (reason if cancelled else attempt.hit.reason), attempt.hit.detail
    return f.JobFinished(
        job_id=attempt.ref.job_id,
        attempt=attempt.ref.attempt,
        node_id=state.node_id,
        exit_code=end.exit_code,
        signal=end.signal,
        reason=reason,
        detail=detail,
        stdout_bytes=end.stdout_bytes,
        stderr_bytes=end.stderr_bytes,
        dropped_bytes=end.dropped_bytes,
        run_ms=end.run_ms,
    )


def _released_facts(state: State, attempt: Attempt) -> list[NodeFact]:
    ref, end = attempt.ref, attempt.exit
    assert end is not None, "what is released has exited"
    for uuid, why in attempt.unclean.items():
        d.was_left(state.devices, uuid, why, d.Left(ref, end.clean, attempt.began_ns))
    return [
        f.JobReleased(
            job_id=ref.job_id,
            attempt=ref.attempt,
            node_id=state.node_id,
            checks=attempt.checks or {},
        )
    ]


def _set_timer(state: State, key: str, attempt: Attempt, now_ns: int) -> None:
    """When this attempt must be looked at again, whatever happens; none when it only waits for an
    observation.
    """
    times: list[int] = []
    if attempt.phase == s.LAUNCHED and attempt.kill_at_ns:
        times.append(attempt.kill_at_ns)
    if attempt.phase == s.LAUNCHED and s.limit_at_ns(attempt) > now_ns:
        times.append(s.limit_at_ns(attempt))
    if (health := _watched(attempt)) is not None:
        times += serving.next_look_ns(health)
    if (due_ns := _checkpoint_due_ns(attempt)) is not None:
        times.append(due_ns)
    if attempt.queued < s.FINISHED_LEVEL and (alone_ns := _alone_ns(attempt)) is not None:
        times.append(alone_ns)
    checked = attempt.checks is not None and not attempt.checking
    if attempt.phase == s.EXITED and checked and attempt.queued < s.OVER_LEVEL:
        times.append(
            min(max(attempt.check_at_ns, now_ns + 1), attempt.exited_ns + state.release_ns)
        )
    if times:
        state.timers[key] = min(times)
    else:
        state.timers.pop(key, None)


def _forget(state: State) -> list[a.Action]:
    asked: list[a.Action] = [
        a.ForgetJob(attempt.ref, attempt.rank, _streams(attempt)) for attempt in state.to_forget
    ]
    state.to_forget.clear()
    return asked


def _streams(attempt: Attempt) -> tuple[str, ...]:
    """Those that hold anything."""
    assert attempt.exit is not None, "only an attempt that exited has a directory to forget"
    sizes = {"stdout": attempt.exit.stdout_bytes, "stderr": attempt.exit.stderr_bytes}
    return tuple(stream for stream, size in sizes.items() if size)


def _ask_desired(state: State, now_ns: int) -> list[a.Action]:
    """Only when the difference is still there: an order may have come meanwhile."""
    if not state.ask_at_ns or now_ns < state.ask_at_ns:
        return []
    state.ask_at_ns = 0
    if state.lost or state.lease_digest == s.digest_here(state):
        return []
    state.ask_not_before_ns = now_ns + ASK_EVERY_NS
    return [a.AskDesired()]


def _begin_again(state: State) -> list[a.Action]:
    if not state.lost or state.ended or not all(map(s.goes_on, state.attempts.values())):
        return []
    state.ended = True
    return [a.BeginAgain("the scheduler held this node for lost")]
