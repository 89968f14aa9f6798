"""The lives of a job and of its members: tables of state x event -> state.

Pure. docs/job-life.md is generated from these tables. An event is the kind of a fact, with a
qualifier if one kind has two meanings, or it follows from the members: `members.started` when every
member has started, `members.ended` when no member runs any more. Folds ignore an event without a
row, all by the same rule. A scheduler whose decision its own fold would ignore exits before it
appends it (`State.apply_own`).
"""

from collections.abc import Sequence
from typing import Final

PENDING: Final = "pending"
QUEUED: Final = "queued"
BEGUN: Final = "begun"
PLACED: Final = "placed"
RUNNING: Final = "running"
RELEASING: Final = "releasing"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
REJECTED: Final = "rejected"

ENDED: Final = (COMPLETED, FAILED, CANCELLED, REJECTED)
LIVE: Final = (PENDING, QUEUED, BEGUN, PLACED, RUNNING, RELEASING)
ON_NODES: Final = (PLACED, RUNNING, RELEASING)

# For each state of a live job: what it waits for.
WAITS_FOR: Final = {
    PENDING: "quota to admit or reject it",
    QUEUED: "the scheduler to place it",
    BEGUN: "its elements to end",
    PLACED: "all its members to start",
    RUNNING: "its processes to end",
    RELEASING: "the release checks of its devices",
}

# A running allocation waits for this instead: its process never ends by itself.
HELD: Final = "its time to be over, or its user to release it"

JOB_LIFE: Final[dict[tuple[str, str], str]] = {
    ("", "job.submitted"): PENDING,
    ("", "replicas.scaled"): QUEUED,
    (PENDING, "job.admitted"): PENDING,
    (PENDING, "job.rejected"): REJECTED,
    (PENDING, "job.queued"): QUEUED,
    (QUEUED, "job.placed"): PLACED,
    (QUEUED, "array.element_begun"): QUEUED,
    (QUEUED, "array.element_begun:last"): BEGUN,
    (BEGUN, "job.closed:completed"): COMPLETED,
    (BEGUN, "job.closed:failed"): FAILED,
    (BEGUN, "job.closed:cancelled"): CANCELLED,
    (QUEUED, "job.closed:cancelled"): CANCELLED,
    (QUEUED, "job.closed:rejected"): REJECTED,
    (PLACED, "members.started"): RUNNING,
    (PLACED, "members.ended"): RELEASING,
    (RUNNING, "members.ended"): RELEASING,
    (RELEASING, "job.requeued"): QUEUED,
    (RELEASING, "job.closed:completed"): COMPLETED,
    (RELEASING, "job.closed:failed"): FAILED,
    (RELEASING, "job.closed:cancelled"): CANCELLED,
}

# A member is one node's part of an attempt. Its first state is placed; refused, released and lost
# are its last.
STARTED: Final = "started"
FINISHED: Final = "finished"
RELEASED: Final = "released"
REFUSED: Final = "refused"
LOST: Final = "lost"

MEMBER_LIFE: Final[dict[tuple[str, str], str]] = {
    ("", "job.placed"): PLACED,
    (PLACED, "job.started"): STARTED,
    (PLACED, "job.refused"): REFUSED,
    (PLACED, "job.finished"): FINISHED,
    (PLACED, "node.lost"): LOST,
    (STARTED, "job.finished"): FINISHED,
    (STARTED, "node.lost"): LOST,
    (FINISHED, "job.released"): RELEASED,
    (FINISHED, "node.lost"): LOST,
    (RELEASED, "node.lost"): LOST,
    (REFUSED, "node.lost"): LOST,
}

MEMBER_ENDED: Final = (FINISHED, RELEASED, REFUSED, LOST)
MEMBER_OVER: Final = (RELEASED, REFUSED, LOST)


def silence(nodes: Sequence[str]) -> str:
    """Return what a job that ignores the lease waits for when these of its nodes are lost."""
    names = ", ".join(nodes)
    where = f"its node {names} is silent" if len(nodes) == 1 else f"its nodes {names} are silent"
    return (
        f"{where} and it may still run there: it starts nowhere else until its node answers or is "
        "declared dead"
    )


def allows(state: str, event: str) -> bool:
    """Return whether the table has a row for `event` in `state`."""
    return (state, event) in JOB_LIFE


def after(state: str, event: str) -> str:
    """Return the state after `event` in `state`. The table must have a row (see `allows`)."""
    return JOB_LIFE[state, event]
