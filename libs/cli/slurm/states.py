"""Slurm's states of a job, from Muster's state and reason. Pure.

Tests: tests/unit/test_slurm_states.py.
"""

from typing import Any, Final, NamedTuple

from libs.common import reasons
from libs.common.errors import Refused
from libs.common.life import job_life

Job = dict[str, Any]


class SlurmState(NamedTuple):
    """A state: its code in two or three letters, and its name."""

    code: str
    name: str


PENDING: Final = SlurmState("PD", "PENDING")
RUNNING: Final = SlurmState("R", "RUNNING")
CONFIGURING: Final = SlurmState("CF", "CONFIGURING")
COMPLETING: Final = SlurmState("CG", "COMPLETING")
COMPLETED: Final = SlurmState("CD", "COMPLETED")
CANCELLED: Final = SlurmState("CA", "CANCELLED")
FAILED: Final = SlurmState("F", "FAILED")
TIMEOUT: Final = SlurmState("TO", "TIMEOUT")
NODE_FAIL: Final = SlurmState("NF", "NODE_FAIL")
OUT_OF_MEMORY: Final = SlurmState("OOM", "OUT_OF_MEMORY")
PREEMPTED: Final = SlurmState("PR", "PREEMPTED")
# No job of Muster is ever suspended, but filters may name the state.
SUSPENDED: Final = SlurmState("S", "SUSPENDED")

STATES: Final = (
    PENDING, RUNNING, CONFIGURING, COMPLETING, COMPLETED, CANCELLED, FAILED, TIMEOUT, NODE_FAIL,
    OUT_OF_MEMORY, PREEMPTED, SUSPENDED,
)  # fmt: skip
# The states that squeue lists by default.
ACTIVE: Final = (PENDING, RUNNING, CONFIGURING, COMPLETING, SUSPENDED)

_LIVE: Final = {
    job_life.PENDING: PENDING,
    job_life.QUEUED: PENDING,
    job_life.BEGUN: RUNNING,
    job_life.PLACED: CONFIGURING,
    job_life.RUNNING: RUNNING,
    job_life.RELEASING: COMPLETING,
    job_life.COMPLETED: COMPLETED,
    job_life.CANCELLED: CANCELLED,
    job_life.REJECTED: FAILED,
}
_BY_REASON: Final = {
    reasons.TIME_LIMIT: TIMEOUT,
    reasons.EXPIRED: TIMEOUT,
    reasons.OUT_OF_MEMORY: OUT_OF_MEMORY,
    reasons.PREEMPTED: PREEMPTED,
    **dict.fromkeys(reasons.BY_THE_MACHINE, NODE_FAIL),
}
# Slurm's words for ended jobs in the columns of a reason.
_WORDS: Final = {
    TIMEOUT: "TimeLimit",
    NODE_FAIL: "NodeFail",
    OUT_OF_MEMORY: "OutOfMemory",
    FAILED: "NonZeroExitCode",
}


def state_of(job: Job) -> SlurmState:
    """Return the state of a job."""
    state, reason = str(job.get("state")), str(job.get("reason") or "")
    if state == job_life.FAILED:
        return _BY_REASON.get(_member_reason(job) or reason, _BY_REASON.get(reason, FAILED))
    if state == job_life.COMPLETED and reason == reasons.EXPIRED:
        return TIMEOUT
    return _LIVE.get(state, FAILED)


def _member_reason(job: Job) -> str:
    """Return the reason of the first member that ended in a way that Slurm has a state for."""
    return next(
        (
            str(member["reason"])
            for member in job.get("members") or ()
            if member.get("reason") in _BY_REASON
        ),
        "",
    )


def end_word(job: Job) -> str:
    """Return Slurm's reason of an ended job, or None."""
    return _WORDS.get(state_of(job), "None")


def states_named(text: str) -> tuple[SlurmState, ...]:
    """Return the states of `-t PD,running`; `all` means every state. Raises Refused."""
    if text.lower() == "all":
        return STATES
    return tuple(_named(word) for word in text.split(",") if word)


def _named(word: str) -> SlurmState:
    for state in STATES:
        if word.upper() in state:
            return state
    known = ", ".join(f"{state.name} ({state.code})" for state in STATES)
    raise Refused(f"invalid job state {word!r}: use {known} or all")


def muster_states(wanted: tuple[SlurmState, ...]) -> tuple[str, ...]:
    """Return the states of Muster that jobs in these states may have, for a query."""
    found = [state for state, shown in _LIVE.items() if shown in wanted]
    if any(state in wanted for state in (*_BY_REASON.values(), FAILED)):
        found += [job_life.FAILED, job_life.COMPLETED]
    return tuple(dict.fromkeys(found))
