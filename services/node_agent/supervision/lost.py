"""End what is left of a job whose supervisor was killed, and write its exit record.

The main process died with the supervisor; its descendants may live. They are found by the attempt's
control group, which they cannot leave. Without one they are found by the main process's start time,
session and process group, and by MUSTER_JOB_DIR in their environment, which is unique to the
attempt.
"""

import os
import signal
import time

from libs.common.reasons import NOT_STARTED, SUPERVISOR_LOST
from services.node_agent.machine import cgroups, environments, processes
from services.node_agent.supervision import output
from services.node_agent.supervisor import records
from services.node_agent.supervisor.records import ExitRecord, Identity

JOB_DIR_VARIABLE = "MUSTER_JOB_DIR"
SETTLE_TRIES = 3
SWEEP_S = 3.0
SWEEP_AGAIN_S = 0.02
CRASH_BYTES = 4096


def settle(
    job_dir: str, job_id: str, attempt: int, rank: int, why: str
) -> tuple[Identity | None, ExitRecord | None]:
    """Return the identity of the living supervisor, or the exit record, which is written if
    missing.

    `why` explains an attempt that no supervisor claimed. Blocks up to ten seconds if processes must
    be killed.
    """
    for _ in range(SETTLE_TRIES):
        record, identity = records.read_exit(job_dir), records.read_identity(job_dir)
        if record is None and identity is None:
            record = end_unclaimed(job_dir, job_id, attempt=attempt, rank=rank, detail=why)
        elif record is None and identity is not None:
            if supervisor_is_living(identity):
                return identity, None
            record = records.read_exit(job_dir) or end_lost(
                job_dir, identity
            )  # it may have ended since the first look
        if record is not None:
            return None, record
    return None, end_lost(
        job_dir, _without_process(job_id, attempt, rank)
    )  # a power cut destroyed the identity


def end_lost(job_dir: str, identity: Identity) -> ExitRecord:
    """Kill what is left and write the exit record; blocks at most ten seconds.

    The caller knows that the supervisor is dead.
    """
    left = _sweep(job_dir, identity)
    record = records.unexecuted(identity, SUPERVISOR_LOST, _explain(job_dir), time.time_ns())
    record["executed"] = identity["pid"] > 0  # it may have been
    record["leftovers"] = records.leftovers_of(left)
    record["clean"] = not left
    record["duration_ns"] = _ran_ns(identity)
    for stream in ("stdout", "stderr"):
        record[f"{stream}_bytes"] = _stored(job_dir, stream)  # type: ignore[literal-required]
    records.write_exit(job_dir, record)
    return record


def _ran_ns(identity: Identity) -> int:
    """Return the run time until the end was found; 0 if the machine has restarted since."""
    if identity["boot_id"] != processes.boot_id() or not identity["job_start_ticks"]:
        return 0
    return max(1, processes.boottime_ns() - processes.boot_ns_of(identity["job_start_ticks"]))


def end_unclaimed(
    job_dir: str, job_id: str, attempt: int, rank: int, detail: str
) -> ExitRecord | None:
    """Give up a start for good: a supervisor that comes late finds the attempt taken.

    Returns None if a supervisor has taken it already.
    """
    identity = _without_process(job_id, attempt, rank)
    if not records.claim(job_dir, identity):
        return None
    record = records.unexecuted(identity, NOT_STARTED, detail, time.time_ns())
    records.write_exit(job_dir, record)
    return record


def _without_process(job_id: str, attempt: int, rank: int) -> Identity:
    """Return an identity for an attempt that has no process."""
    return Identity(
        job_id=job_id,
        attempt=attempt,
        rank=rank,
        pid=0,
        start_ticks=0,
        job_pid=0,
        job_start_ticks=0,
        boot_id=processes.boot_id(),
        started_ns=time.time_ns(),
        control="",
        cgroup="",
    )


def supervisor_is_living(identity: Identity) -> bool:
    """Return whether the supervisor lives, by pid, start time and boot."""
    return identity["boot_id"] == processes.boot_id() and processes.is_living(
        identity["pid"], identity["start_ticks"]
    )


def serves(job_dir: str, identity: Identity) -> bool:
    """Return whether the supervisor lives and has not recorded the end of this attempt.

    Afterwards it may serve another attempt. Call this last: if it returns true, the processes
    that were seen below the supervisor before belong to this attempt.
    """
    return supervisor_is_living(identity) and records.read_exit(job_dir) is None


def _sweep(job_dir: str, identity: Identity) -> list[int]:
    """Kill until nothing is left; return what SIGKILL did not end."""
    if identity["boot_id"] != processes.boot_id():
        return []
    mark = os.fsencode(f"{JOB_DIR_VARIABLE}={job_dir}")
    left: list[int] = []
    group = identity.get("cgroup", "")
    until = time.monotonic() + SWEEP_S
    while time.monotonic() < until:
        cgroups.kill(group)
        left = _of_job(mark, identity) + cgroups.members(group)
        if not left:
            break
        processes.send(left, signal.SIGKILL)
        time.sleep(SWEEP_AGAIN_S)
    return left


def _of_job(mark: bytes, identity: Identity) -> list[int]:
    """Return the processes that belong to the job, by session or environment."""
    belong = {pid: _belongs(pid, identity) for pid in processes.all_pids()}
    others = [pid for pid, known in belong.items() if known is None]
    return [pid for pid, known in belong.items() if known] + environments.holding(mark, others)


def _belongs(pid: int, identity: Identity) -> bool | None:
    """Return whether a process belongs to the job, None if only its environment can tell.

    Zombies do not count. A session of the same number that began before the job is another one.
    """
    found = processes.process(pid)
    if (
        found is None
        or found.state in "ZX"
        or found.start_ticks < identity["job_start_ticks"]
        or pid == os.getpid()
    ):
        return False
    if pid == identity["job_pid"]:
        return found.start_ticks == identity["job_start_ticks"]
    in_session = (
        identity["job_pid"] > 0
        and identity["job_pid"] in (found.session, found.group)
        and not _reused(identity)
    )
    return True if in_session else None


def _reused(identity: Identity) -> bool:
    leader = processes.process(identity["job_pid"])
    return leader is not None and leader.start_ticks != identity["job_start_ticks"]


def _explain(job_dir: str) -> str:
    try:
        with open(f"{job_dir}/{records.CRASH}") as file:
            lines = file.read(CRASH_BYTES).strip().splitlines()
    except OSError:
        lines = []
    why = f"it failed: {lines[-1]}" if lines else "it was killed, or the machine restarted"
    return (
        f"the job's supervisor ended without recording an exit ({why}); the job was ended with it"
    )


def _stored(job_dir: str, stream: str) -> int:
    return output.tail(job_dir, stream, 0).offset
