"""Jobs as the verbs show them: end states, exit codes, and the columns of lists.

Pure, except for `utc_now`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from libs.cli.flags.durations import age, between, parse_instant, show_duration
from libs.cli.terminal.table import Column, state_colour
from libs.common.life import failed_start

Job = dict[str, Any]

ENDED: Final = ("completed", "failed", "cancelled", "rejected")
NODES_SHOWN: Final = 2
# In the explanation of a job that the cluster could never hold.
NEVER_HELD: Final = "could never hold it"
WHOLE_SHARE: Final = 100

COLUMNS: Final = (
    Column("ID"),
    Column("NAME", flexible=True),
    Column("STATE", colour_of=state_colour),
    Column("GPUS", right=True),
    Column("USER", flexible=True),
    Column("SUBMITTED", right=True),
    Column("RAN", right=True),
    Column("NODES", flexible=True),
    Column("REASON", flexible=True),
)
WIDE_COLUMNS: Final = (
    *COLUMNS,
    Column("TENANT"),
    Column("PRIO", right=True),
    Column("TRY", right=True),
    Column("EXIT", right=True),
    Column("COMMAND"),
)


def utc_now() -> datetime:
    return datetime.now(UTC)


def exit_code_of(job: Job) -> int:
    """Return the exit code of `run` and `wait` for an ended job.

    It is the job's own code, or 128 + N if signal N ended it. A job without a code gives 0 if it
    completed, else 1.
    """
    code = job.get("exit_code")
    if isinstance(code, int):
        return code & 0xFF if code >= 0 else 128 - code
    return 0 if job.get("state") == "completed" else 1


def gpus_requested(job: Job) -> str:
    """Return the requested GPUs: `2`, `4x8` (nodes x GPUs), `2..8x8`, `0.5` or `2x0.25`."""
    share = int(job.get("gpu_share") or WHOLE_SHARE)
    each = (
        f"{job.get('gpus') or 0}"
        if share == WHOLE_SHARE
        else f"{int(job.get('gpus') or 0) * share / WHOLE_SHARE:g}"
    )
    nodes = int(job.get("nodes") or 1)
    most = int(job.get("nodes_max") or nodes)
    return f"{nodes}..{most}x{each}" if most > nodes else each if nodes == 1 else f"{nodes}x{each}"


def places(node_ids: Sequence[str] | None) -> str:
    """Return the first nodes and the number of others: `node-1,node-2,+6`."""
    nodes = list(node_ids or ())
    more = [f"+{len(nodes) - NODES_SHOWN}"] if len(nodes) > NODES_SHOWN else []
    return ",".join(nodes[:NODES_SHOWN] + more) or "-"


def command_line(job: Job) -> str:
    """Return the command as typed in a shell."""
    from shlex import join

    return join(map(str, job.get("command") or ()))


def why_of(job: Job) -> str:
    """Return why the job never began, or its reason if that says more than its state."""
    reason = str(job.get("reason") or "")
    return _never_began(job) or ("" if reason == job.get("state") else reason)


def _never_began(job: Job) -> str:
    found = (
        failed_start.words(
            reason=str(member.get("reason") or ""),
            detail=str(member.get("detail") or ""),
            node=str(member.get("node_id")),
            exit_code=member.get("exit_code"),
        )
        for member in job.get("members") or ()
    )
    return next(filter(None, found), "")


def ends_in(job: Job, now: datetime) -> str:
    """Return the time left of a held allocation, or an empty text."""
    end = (
        parse_instant(job.get("expires_at")) if job.get("state") in ("placed", "running") else None
    )
    return f"ends in {show_duration((end - now).total_seconds())}" if end else ""


def elements_of(job: Job) -> str:
    """Return an array's elements by state: `80 queued, 4 running, 16 completed`."""
    return ", ".join(
        f"{count} {state}"
        for state, count in ((job.get("array") or {}).get("states") or {}).items()
    )


def row(job: Job, now: datetime) -> list[str]:
    """Return the cells of COLUMNS."""
    return [
        str(job.get("id")),
        str(job.get("name") or "-"),
        str(job.get("state") or "-"),
        gpus_requested(job),
        str(job.get("user") or "-"),
        age(job.get("submitted_at"), now),
        between(job.get("started_at"), job.get("ended_at"), now),
        places(job.get("node_ids")),
        why_of(job) or ends_in(job, now) or elements_of(job),
    ]


def wide_row(job: Job, now: datetime) -> list[str]:
    """Return the cells of WIDE_COLUMNS."""
    code = job.get("exit_code")
    return [
        *row(job, now),
        str(job.get("tenant") or "-"),
        str(job.get("priority", "-")),
        str(job.get("attempt", "-")),
        "-" if code is None else str(code),
        command_line(job),
    ]
