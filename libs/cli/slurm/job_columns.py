"""The columns of squeue and sacct, and their letters and names in formats.

Each field is a function of a JobRow. Tests: tests/unit/test_slurm_job_columns.py.
"""

import shlex
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from libs.cli.slurm.columns import Field
from libs.cli.slurm.node_lists import compressed
from libs.cli.slurm.states import PENDING, end_word, state_of
from libs.cli.slurm.times import NOT_KNOWN, UNKNOWN, UNLIMITED, clock, instant

Job = dict[str, Any]
WHOLE_SHARE: Final = 100
NULL: Final = "(null)"


class JobRow(NamedTuple):
    """A job, and what its row needs besides: the word of its reason, the present time, how ids are
    written, and when a waiting job is expected to start.
    """

    job: Job
    reason: str
    now: datetime
    shown_id: Callable[[str], str] = str
    expected: datetime | None = None


def at(row: JobRow, name: str) -> datetime | None:
    """Return an instant of the job, or None."""
    text = row.job.get(name)
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None


def job_id(row: JobRow) -> str:
    """Return the id; a waiting array shows the numbers that it still has: `j4f2_[0-99%4]`."""
    shown = row.shown_id(str(row.job["id"]))
    array = row.job.get("array")
    return f"{shown}_[{array['numbers']}]" if array else shown


def raw_id(row: JobRow) -> str:
    return row.shown_id(str(row.job["id"]))


def array_job_id(row: JobRow) -> str:
    return row.shown_id(str(row.job.get("element_of") or row.job["id"]))


def array_task_id(row: JobRow) -> str:
    job = row.job
    if job.get("array"):
        return str(job["array"]["numbers"])
    return str(job["id"]).rpartition("_")[2] if job.get("element_of") else NOT_KNOWN


def is_waiting(row: JobRow) -> bool:
    return state_of(row.job) == PENDING


def nodes_or_reason(row: JobRow) -> str:
    """Return the nodes of a job that has some, else the reason in brackets."""
    job = row.job
    if is_waiting(row):
        return f"({row.reason})"
    nodes = compressed(job.get("node_ids") or ())
    return nodes or f"({end_word(job)})"


def reason(row: JobRow) -> str:
    return row.reason if is_waiting(row) else end_word(row.job)


def elapsed_s(row: JobRow) -> float:
    start = at(row, "started_at")
    end = at(row, "ended_at") or row.now
    return max(0.0, (end - start).total_seconds()) if start else 0.0


def limit(row: JobRow) -> str:
    seconds = row.job.get("time_limit_s")
    return clock(seconds) if seconds else UNLIMITED


def left(row: JobRow) -> str:
    seconds = row.job.get("time_limit_s")
    return clock(seconds - elapsed_s(row)) if seconds else UNLIMITED


def start(row: JobRow) -> datetime | None:
    return at(row, "started_at") or row.expected


def end(row: JobRow) -> datetime | None:
    """Return the end, or for a job with a time limit the latest end."""
    known = at(row, "ended_at") or at(row, "expires_at")
    begun, seconds = start(row), row.job.get("time_limit_s")
    return known or (begun + timedelta(seconds=seconds) if begun and seconds else None)


def nodes(row: JobRow) -> int:
    return len(row.job.get("node_ids") or ()) or int(row.job.get("nodes") or 1)


def gpus_in_all(row: JobRow) -> str:
    """Return the GPUs of all nodes; parts of a GPU as a decimal number."""
    share = int(row.job.get("gpu_share") or WHOLE_SHARE)
    return f"{nodes(row) * int(row.job.get('gpus') or 0) * share / WHOLE_SHARE:g}"


def per_node(row: JobRow) -> str:
    """Return the GPUs of one node as squeue writes them: `gres/gpu:2`."""
    gpus = int(row.job.get("gpus") or 0)
    share = int(row.job.get("gpu_share") or WHOLE_SHARE)
    return f"gres/gpu:{gpus * share / WHOLE_SHARE:g}" if gpus else NOT_KNOWN


def tres(row: JobRow) -> str:
    """Return the resources as sacct writes them: `billing=2,gres/gpu=2,node=1`."""
    parts = {
        "cpu": cpus(row),
        "mem": memory(row),
        "node": str(nodes(row)),
        "gres/gpu": gpus_in_all(row),
    }
    return ",".join(f"{name}={value}" for name, value in parts.items() if value != "0")


def exit_code(row: JobRow) -> str:
    """Return `CODE:SIGNAL`; a job that a signal ended has a negative code."""
    code = row.job.get("exit_code")
    if not isinstance(code, int):
        return "0:0"
    return f"{code}:0" if code >= 0 else f"0:{-code}"


def dependency(row: JobRow) -> str:
    waits = [f"afterany:{row.shown_id(str(each))}(unfulfilled)" for each in row.job["after"] or ()]
    return ",".join(waits) or NULL


def command(row: JobRow) -> str:
    return shlex.join(map(str, row.job.get("command") or ()))


def cpus(row: JobRow) -> str:
    """Return the CPUs of all nodes, rounded up for each node; a job without CPUs shows 0."""
    return str(nodes(row) * -(-int(row.job.get("cpus_milli") or 0) // 1_000))


def memory(row: JobRow) -> str:
    """Return the memory of each node as Slurm writes it: `64G`, `512M`; 0 without a request."""
    size = int(row.job.get("memory_bytes") or 0)
    return f"{size >> 30}G" if size and size % (1 << 30) == 0 else f"{size >> 20}M" if size else "0"


FIELDS: Final[dict[str, Field[JobRow]]] = {
    "jobid": Field("JOBID", job_id, -12),
    "jobidraw": Field("JOBIDRAW", raw_id, -12),
    "jobarrayid": Field("JOBID", job_id, -12),
    "arrayjobid": Field("ARRAY_JOB_ID", array_job_id),
    "arraytaskid": Field("ARRAY_TASK_ID", array_task_id),
    "partition": Field("PARTITION", lambda row: str(row.job.get("queue") or "default")),
    "name": Field("NAME", lambda row: str(row.job.get("name") or "none")),
    "username": Field("USER", lambda row: str(row.job.get("user") or "")),
    "userid": Field("USER", lambda row: str(row.job.get("user") or "")),
    "groupname": Field("GROUP", lambda row: str(row.job.get("tenant") or "")),
    "account": Field("ACCOUNT", lambda row: str(row.job.get("tenant") or "")),
    "statecompact": Field("ST", lambda row: state_of(row.job).code),
    "state": Field("STATE", lambda row: state_of(row.job).name),
    "timeused": Field("TIME", lambda row: clock(elapsed_s(row))),
    "timelimit": Field("TIME_LIMIT", limit),
    "timeleft": Field("TIME_LEFT", left),
    "numnodes": Field("NODES", lambda row: str(nodes(row))),
    "numcpus": Field("CPUS", cpus),
    "numtasks": Field("TASKS", lambda row: str(nodes(row))),
    "reasonlist": Field("NODELIST(REASON)", nodes_or_reason),
    "reason": Field("REASON", reason),
    "nodelist": Field("NODELIST", lambda row: compressed(row.job.get("node_ids") or ())),
    "schednodes": Field(
        "SCHEDNODES", lambda row: compressed(row.job.get("reserved") or ()) or NULL
    ),
    "starttime": Field("START_TIME", lambda row: instant(start(row))),
    "endtime": Field("END_TIME", lambda row: instant(end(row))),
    "submittime": Field("SUBMIT_TIME", lambda row: instant(at(row, "submitted_at"))),
    "eligibletime": Field("ELIGIBLE_TIME", lambda row: instant(at(row, "queued_at"))),
    "prioritylong": Field("PRIORITY", lambda row: str(row.job.get("priority", ""))),
    "priority": Field("PRIORITY", lambda row: f"{int(row.job.get('priority') or 0) / 100:.14f}"),
    "qos": Field("QOS", lambda _: "normal"),
    "gres": Field("TRES_PER_NODE", per_node),
    "tres-per-node": Field("TRES_PER_NODE", per_node),
    "tres-alloc": Field("TRES_ALLOC", tres),
    "minmemory": Field("MIN_MEMORY", memory),
    "mincpus": Field("MIN_CPUS", lambda row: str(-(-int(row.job.get("cpus_milli") or 0) // 1_000))),
    "reservation": Field("RESERVATION", lambda row: str(row.job.get("reservation") or NULL)),
    "dependency": Field("DEPENDENCY", dependency),
    "command": Field("COMMAND", command),
    "workdir": Field("WORK_DIR", lambda row: str(row.job.get("workdir") or "")),
    "comment": Field("COMMENT", lambda _: NULL),
    "features": Field("FEATURES", lambda _: NULL),
    "exit_code": Field("EXIT_CODE", exit_code),
    "restartcnt": Field("RESTART_COUNT", lambda row: str(int(row.job.get("attempt") or 1) - 1)),
    "batchhost": Field("EXEC_HOST", lambda row: next(iter(row.job.get("node_ids") or ()), "n/a")),
    "oversubscribe": Field("OVER_SUBSCRIBE", lambda _: "OK"),
}

# The letters of `squeue -o`.
LETTERS: Final = {
    "i": "jobid", "A": "jobidraw", "F": "arrayjobid", "K": "arraytaskid", "P": "partition",
    "j": "name", "u": "username", "U": "userid", "g": "groupname", "a": "account",
    "t": "statecompact", "T": "state", "M": "timeused", "l": "timelimit", "L": "timeleft",
    "D": "numnodes", "C": "numcpus", "R": "reasonlist", "r": "reason", "N": "nodelist",
    "Y": "schednodes", "S": "starttime", "e": "endtime", "V": "submittime", "Q": "prioritylong",
    "p": "priority", "q": "qos", "b": "gres", "E": "dependency", "o": "command", "Z": "workdir",
    "k": "comment", "f": "features", "B": "batchhost", "h": "oversubscribe",
    "m": "minmemory", "c": "mincpus", "v": "reservation",
}  # fmt: skip

DEFAULT: Final = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG: Final = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START: Final = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"


def _ended_state(row: JobRow) -> str:
    return state_of(row.job).name


def _time(name: str) -> Callable[[JobRow], str]:
    return lambda row: instant(at(row, name), UNKNOWN)


# The columns of sacct.
ACCOUNTING: Final[dict[str, Field[JobRow]]] = {
    "jobid": Field("JobID", raw_id, -12),
    "jobidraw": Field("JobIDRaw", raw_id, -12),
    "jobname": Field("JobName", lambda row: str(row.job.get("name") or "none")),
    "partition": Field("Partition", FIELDS["partition"].of),
    "account": Field("Account", FIELDS["account"].of),
    "user": Field("User", FIELDS["username"].of, 9),
    "group": Field("Group", FIELDS["account"].of, 9),
    "qos": Field("QOS", lambda _: "normal"),
    "cluster": Field("Cluster", lambda _: "muster"),
    "state": Field("State", _ended_state),
    "exitcode": Field("ExitCode", exit_code, 8),
    "derivedexitcode": Field("DerivedExitCode", exit_code, 15),
    "elapsed": Field("Elapsed", lambda row: clock(elapsed_s(row), always_hours=True)),
    "elapsedraw": Field("ElapsedRaw", lambda row: str(int(elapsed_s(row)))),
    "submit": Field("Submit", _time("submitted_at"), 19),
    "eligible": Field("Eligible", _time("queued_at"), 19),
    "start": Field("Start", _time("started_at"), 19),
    "end": Field("End", _time("ended_at"), 19),
    "timelimit": Field("Timelimit", limit),
    "timelimitraw": Field(
        "TimelimitRaw", lambda row: str(int(row.job.get("time_limit_s") or 0) // 60), 12
    ),
    "alloccpus": Field("AllocCPUS", cpus),
    "ncpus": Field("NCPUS", cpus),
    "reqcpus": Field("ReqCPUS", cpus, 8),
    "reqmem": Field("ReqMem", memory),
    "reservation": Field("Reservation", lambda row: str(row.job.get("reservation") or ""), 20),
    "nnodes": Field("NNodes", lambda row: str(nodes(row)), 8),
    "nodelist": Field("NodeList", lambda row: FIELDS["nodelist"].of(row) or "None assigned", 15),
    "alloctres": Field("AllocTRES", tres),
    "reqtres": Field("ReqTRES", tres),
    "priority": Field("Priority", FIELDS["prioritylong"].of),
    "workdir": Field("WorkDir", FIELDS["workdir"].of, 20),
    "submitline": Field("SubmitLine", command, 20),
    "reason": Field("Reason", reason, 22),
    "restarts": Field("Restarts", FIELDS["restartcnt"].of, 8),
    "comment": Field("Comment", lambda _: "", 14),
    "maxrss": Field("MaxRSS", lambda _: ""),
}
ACCOUNTING_DEFAULT: Final = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
ACCOUNTING_BRIEF: Final = "JobID,State,ExitCode"
