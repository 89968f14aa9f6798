"""The facts that one attempt has ready to record: start, health, checkpoints, end, release.

Pure. `decide.py` calls `ready_facts` and puts the facts of all attempts in one commit. Tests:
tests/unit/test_agent_decide.py.
"""

from typing import Final

from libs.common import facts as f
from libs.common.facts import NodeFact
from libs.common.life.job_life import CANCELLED
from libs.common.model import NodeId
from libs.common.reasons import BY_THE_AGENT, GPU_ERROR, GPU_FAULT, MPS_LOST, STOPPED, TIME_LIMIT
from services.node_agent.core import device_use, serving, shares, standby
from services.node_agent.core import devices as d
from services.node_agent.core import state as s
from services.node_agent.core.batch import element_facts
from services.node_agent.core.observations import Exit
from services.node_agent.core.serving import Health
from services.node_agent.core.state import MS, Attempt, State

# JobFinished waits this long for the release check, so that both usually go in one commit. A start
# that is not recorded yet waits with them.
FINISHED_ALONE_NS: Final = 20 * MS
# At most one checkpoint fact per attempt in this time, except for the first and the last.
CHECKPOINT_EVERY_NS: Final = 30_000 * MS
# The reasons of stops that follow a device error (`hits.py`).
OF_HITS: Final = (GPU_FAULT, GPU_ERROR, MPS_LOST)
# The entry of a release check: no process of the job is left.
PROCESSES: Final = "processes"
GONE: Final = "gone"
# A release check has deadlines of its own, also for each reset and scrub. Without any result after
# this time it is given up, and all devices of the attempt are quarantined.
UNCHECKED_NS: Final = 900_000 * MS
UNCHECKED: Final = "not known: the release check did not end"


def running_health(attempt: Attempt) -> Health | None:
    """Return the health of a replica that runs and is not stopping, else None."""
    return (
        attempt.health
        if attempt.phase == s.LAUNCHED and attempt.executed and attempt.stop is None
        else None
    )


def _share_facts(state: State, attempt: Attempt, now_ns: int) -> list[NodeFact]:
    """Return the warning that the job uses more memory than its share, if one is due."""
    if (
        attempt.phase != s.LAUNCHED
        or attempt.share is None
        or (over := shares.take_warning(attempt.share, now_ns)) is None
    ):
        return []
    (job_id, number), grace_s = (
        (attempt.ref.job_id, attempt.ref.attempt),
        state.devices.policy.share_grace_s,
    )
    used, part = over.use.used_bytes, over.use.share_bytes
    fact = f.JobOverShare(
        job_id=job_id,
        attempt=number,
        node_id=state.node_id,
        uuid=over.uuid,
        used_bytes=used,
        share_bytes=part,
        grace_s=grace_s,
    )
    return [fact]


def _health_facts(attempt: Attempt, node_id: NodeId) -> list[NodeFact]:
    """Return the change of a replica's readiness, if it is not recorded yet."""
    health, ref = running_health(attempt), attempt.ref
    if health is None or not serving.take_change(health):
        return []
    if health.ready:
        return [f.ReplicaReady(job_id=ref.job_id, attempt=ref.attempt, node_id=node_id)]
    return [
        f.ReplicaUnready(
            job_id=ref.job_id, attempt=ref.attempt, node_id=node_id, reason=health.wrong
        )
    ]


def _idle_facts(attempt: Attempt, node_id: NodeId, now_ns: int) -> list[NodeFact]:
    """Return that all devices are idle, or that one works again, if the log does not know it.

    Replicas have no such facts: without requests they are idle, and autoscaling ends them.
    """
    if attempt.phase != s.LAUNCHED or attempt.health is not None:
        return []
    idle_ms = device_use.take_idle(attempt.use, now_ns)
    if idle_ms is None:
        return []
    (job_id, number) = (attempt.ref.job_id, attempt.ref.attempt)
    return [f.JobIdleSeen(job_id=job_id, attempt=number, node_id=node_id, idle_ms=idle_ms)]


def _answers_stop(attempt: Attempt) -> bool:
    """Return whether the newest checkpoint came after the stop was sent."""
    return attempt.stop_sent is not None and attempt.checkpointed_ns > attempt.checkpoint_at_stop_ns


def checkpoint_due_ns(attempt: Attempt) -> int | None:
    """Return when the newest checkpoint must be recorded; None for never.

    The first checkpoint, the answer to a stop and the last one are recorded at once; others wait
    `CHECKPOINT_EVERY_NS`.
    """
    if (
        attempt.checkpointed_ns <= attempt.checkpoint_recorded_ns
        or attempt.queued < s.STARTED_LEVEL
    ):
        return None
    answers = (
        _answers_stop(attempt) and attempt.checkpoint_recorded_ns <= attempt.checkpoint_at_stop_ns
    )
    return 0 if answers or attempt.phase == s.EXITED else attempt.checkpoint_due_ns


def _checkpoint_facts(attempt: Attempt, node_id: NodeId, now_ns: int) -> list[NodeFact]:
    """Return the newest checkpoint, if it is due."""
    due_ns, at_ns, asked, ref = (
        checkpoint_due_ns(attempt),
        attempt.checkpointed_ns,
        _answers_stop(attempt),
        attempt.ref,
    )
    if due_ns is None or now_ns < due_ns:
        return []
    attempt.checkpoint_recorded_ns, attempt.checkpoint_due_ns = at_ns, now_ns + CHECKPOINT_EVERY_NS
    return [
        f.JobCheckpointed(
            job_id=ref.job_id, attempt=ref.attempt, node_id=node_id, asked=asked, at_ns=at_ns
        )
    ]


def _end_reason(attempt: Attempt, end: Exit) -> tuple[str, str]:
    """Return the reason and the detail of the end.

    If the agent's own stop ended the job, its reason replaces "stopped".
    """
    stop = attempt.stop
    own = stop is not None and attempt.ordered is None and stop.reason in BY_THE_AGENT
    return (
        (stop.reason, stop.detail or end.detail)
        if own and stop is not None and end.reason == STOPPED
        else (end.reason, end.detail)
    )


def is_released(state: State, attempt: Attempt, now_ns: int) -> bool:
    """Return whether the release check is over: everything is clean, or the time is up.

    Devices that are not clean then are quarantined. The check also ends when only devices are left
    that need a restart of the machine, or without a result after UNCHECKED_NS.
    """
    if attempt.checks is None:
        return now_ns >= unchecked_due_ns(state, attempt)
    lost = (
        attempt.unclean
        and attempt.checks.get(PROCESSES) == GONE
        and all(d.needs_reboot_or_replacement(state.devices, uuid) for uuid in attempt.unclean)
    )
    return attempt.clean or bool(lost) or now_ns >= attempt.exited_ns + state.release_ns


def unchecked_due_ns(state: State, attempt: Attempt) -> int:
    """Return when a release check without a result is given up."""
    return attempt.exited_ns + max(state.release_ns, UNCHECKED_NS)


def ready_facts(state: State, attempt: Attempt, now_ns: int) -> list[NodeFact]:
    """Return the facts of one attempt that are not recorded yet and are possible now, in order."""
    ready: list[NodeFact] = []
    ref, node_id = attempt.ref, state.node_id
    if attempt.phase == s.REFUSED and attempt.queued < s.OVER_LEVEL:
        attempt.queued = s.OVER_LEVEL
        return [
            f.JobRefused(
                job_id=ref.job_id, attempt=ref.attempt, node_id=node_id, reason=attempt.refusal
            )
        ]
    over = attempt.phase == s.EXITED and is_released(state, attempt, now_ns)
    alone_ns = end_due_ns(attempt)
    ended = over or (alone_ns is not None and now_ns >= alone_ns)
    start_ns = start_due_ns(attempt)
    if start_ns is not None and now_ns < start_ns and not ended:
        return []
    if start_ns is not None:
        attempt.queued = s.STARTED_LEVEL
        ready.append(_started(attempt, node_id))
    ready += (
        standby.facts(attempt.standby, ref, node_id)
        + _health_facts(attempt, node_id)
        + _checkpoint_facts(attempt, node_id, now_ns)
        + element_facts(attempt, node_id, now_ns)
        + _share_facts(state, attempt, now_ns)
        + _idle_facts(attempt, node_id, now_ns)
    )
    if ended and attempt.queued < s.FINISHED_LEVEL:
        attempt.queued = s.FINISHED_LEVEL
        ready.append(_finished(state, attempt))
    if over and attempt.queued < s.OVER_LEVEL:
        attempt.queued = s.OVER_LEVEL
        ready += _released_facts(state, attempt)
    return ready


def _started(attempt: Attempt, node_id: NodeId) -> f.JobStarted:
    return f.JobStarted(
        job_id=attempt.ref.job_id,
        attempt=attempt.ref.attempt,
        node_id=node_id,
        pid=attempt.pid,
        isolation=attempt.isolation,
        image=attempt.image,
        image_in_registry=attempt.image_in_registry,
    )


def start_due_ns(attempt: Attempt) -> int | None:
    """Return when JobStarted must be recorded; None for never.

    The start of a job that has ended already waits for its end, so that a short job needs one
    commit.
    """
    if not attempt.executed or attempt.queued >= s.STARTED_LEVEL:
        return None
    return attempt.exited_ns + FINISHED_ALONE_NS if attempt.phase == s.EXITED else 0


def end_due_ns(attempt: Attempt) -> int | None:
    """Return when JobFinished may be recorded without the release check; None: not yet.

    The end of a failed job waits for the first release check, because a device error may be the
    cause.
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
    """Return the JobFinished fact, with the reason that explains the end best.

    A job that was stopped because of a device error ends for that, even if it exits with 0.
    """
    end = attempt.exit
    assert end is not None, "an attempt that exited has its exit"
    sent = attempt.stop_sent if end.reason == STOPPED else None
    why = sent.reason if sent is not None else ""
    reason, detail = (TIME_LIMIT, end.detail) if why == TIME_LIMIT else _end_reason(attempt, end)
    if attempt.hit is not None and (end.exit_code != 0 or why in OF_HITS):
        reason, detail = (reason if why == CANCELLED else attempt.hit.reason), attempt.hit.detail
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
        use=device_use.total(attempt.use),
    )


def _released_facts(state: State, attempt: Attempt) -> list[NodeFact]:
    """Return the JobReleased fact, and quarantine the devices that are not clean."""
    ref, end = attempt.ref, attempt.exit
    assert end is not None, "what is released has exited"
    if attempt.checks is None:
        attempt.checks = {PROCESSES: UNCHECKED}
        attempt.unclean = dict.fromkeys(attempt.gpus, UNCHECKED)
    for uuid, why in attempt.unclean.items():
        d.quarantine(state.devices, uuid, why, d.Leftover(ref, end.clean, attempt.began_ns))
    return [
        f.JobReleased(
            job_id=ref.job_id,
            attempt=ref.attempt,
            node_id=state.node_id,
            checks=attempt.checks,
        )
    ]
