"""squeue: list jobs."""

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final

from libs.cli.slurm import states
from libs.cli.slurm.array_numbers import numbers_of
from libs.cli.slurm.columns import Piece, lines, named, percent
from libs.cli.slurm.job_columns import (
    DEFAULT,
    FIELDS,
    LETTERS,
    LONG,
    START,
    JobRow,
    at,
    cpus,
    elapsed_s,
    end,
    nodes,
    start,
)
from libs.cli.slurm.options import MAY, NONE, Given, Option, Table, parse
from libs.cli.slurm.requests import (
    Json,
    jobs_named,
    list_jobs,
    nodes_of,
    own_user,
    rows_of,
    say,
)
from libs.client.profile import Profile, read_profile
from libs.common.life import job_life

PROGRAM: Final = "squeue"
OPTIONS: Final = (
    Option("jobs", "j", MAY), Option("job", "", MAY), Option("user", "u"), Option("me", "", NONE),
    Option("name", "n"), Option("partition", "p"), Option("states", "t"), Option("account", "A"),
    Option("nodelist", "w"), Option("reservation", "R"), Option("format", "o"),
    Option("Format", "O"),
    Option("noheader", "h", NONE), Option("start", "", NONE), Option("sort", "S"),
    Option("array", "r", NONE), Option("all", "a", NONE), Option("verbose", "v", NONE),
    Option("hide", "", NONE), Option("local", "", NONE), Option("priority", "P", NONE),
    Option("steps", "s", MAY), Option("long", "l", NONE),
)  # fmt: skip
REFUSED: Final = {
    "iterate": "use watch -n SECONDS squeue, or muster top",
    "json": "use muster ps -o json",
    "yaml": "use muster ps -o yaml",
    "qos": "Muster has no qualities of service",
    "licenses": "licences are not counted",
    "clusters": "choose the cluster with MUSTER_URL or muster login",
    "federation": "choose the cluster with MUSTER_URL or muster login",
}
LETTERS_REFUSED: Final = {"i": "iterate", "L": "licenses", "q": "qos", "M": "clusters"}
TABLE: Final = Table(PROGRAM, OPTIONS, REFUSED, LETTERS_REFUSED)
# The order of rows, before the waiting jobs.
FIRST: Final = (states.RUNNING, states.COMPLETING, states.CONFIGURING)
STEPS: Final = "STEPID     NAME PARTITION     USER      TIME NODELIST"


def main(words: Sequence[str]) -> int:
    given = parse(TABLE, words)
    if given.has("steps"):
        print(STEPS)
        return 0
    pieces = pieces_of(given)
    profile = read_profile()
    own = own_user(profile) if given.has("me") else ""
    code = 0

    def missing(ref: str) -> None:
        nonlocal code
        code = 1
        say(PROGRAM, f"error: Invalid job id specified: {ref}")

    jobs = [job for job in _jobs(profile, given, own, missing) if wanted(job, given, own)]
    rows = rows_of(profile, jobs, explain=_shows_reason(pieces))
    if given.has("array"):
        rows = [each for row in rows for each in elements(row)]
    if given.has("long") and not given.has("noheader"):
        print(f"{datetime.now():%a %b %d %H:%M:%S %Y}")
    for line in lines(pieces, FIELDS, sorted_rows(rows, given), not given.has("noheader")):
        print(line)
    return code


def pieces_of(given: Given) -> list[Piece]:
    """Return the format: -O, -o, SQUEUE_FORMAT, or the default."""
    if names := given.last("Format"):
        return named(names, tuple(FIELDS))
    otherwise = os.environ.get("SQUEUE_FORMAT") or DEFAULT
    chosen = START if given.has("start") else LONG if given.has("long") else otherwise
    return percent(given.last("format") or chosen, LETTERS)


def elements(row: JobRow) -> Iterator[JobRow]:
    """Yield a row for each element of an array that has not begun (-r); any other row as it is."""
    array = row.job.get("array")
    if not array:
        yield row
        return
    for number in numbers_of(array["numbers"]):
        name = f"{row.job['id']}_{number}"
        job = {**row.job, "id": name, "element_of": row.job["id"], "array": None}
        yield row._replace(job=job)


def _shows_reason(pieces: Sequence[Piece]) -> bool:
    return any(piece.field in ("reason", "reasonlist", "starttime", "endtime") for piece in pieces)


def _jobs(profile: Profile, given: Given, own: str, missing: Callable[[str], None]) -> list[Json]:
    refs = [*given.listed("jobs"), *given.listed("job")]
    if refs:
        return jobs_named(profile, refs, missing)
    users = _users(given, own)
    found = states.muster_states(_states(given))
    query = {"elements": 1, "all": 1 if given.has("states") else None, "state": ",".join(found)}
    partition = given.listed("partition")
    jobs = list_jobs(profile, {**query, "user": users[0] if len(users) == 1 else None})
    return [job for job in jobs if not partition or job.get("queue") in partition]


def _users(given: Given, own: str) -> list[str]:
    return [own] if given.has("me") else given.listed("user")


def _states(given: Given) -> tuple[states.SlurmState, ...]:
    text = given.last("states")
    named_jobs = given.has("jobs") or given.has("job")
    return states.states_named(text) if text else states.STATES if named_jobs else states.ACTIVE


def wanted(job: Json, given: Given, own: str) -> bool:
    """Return whether squeue lists the job: an array whose elements all began is its elements."""
    named_nodes = nodes_of("nodelist", given.last("nodelist"))
    users, names = _users(given, own), given.listed("name")
    listed = given.last("states") or job.get("state") not in job_life.ENDED
    return (
        bool(listed)
        and job.get("state") != job_life.BEGUN
        and states.state_of(job) in _states(given)
        and (not users or job.get("user") in users)
        and (not names or job.get("name") in names)
        and given.last("account", job.get("tenant") or "") == job.get("tenant")
        and given.last("reservation", job.get("reservation") or "") == job.get("reservation")
        and (not named_nodes or bool(set(named_nodes) & set(job.get("node_ids") or ())))
        and (not given.has("start") or states.state_of(job) == states.PENDING)
    )


def sort_key(name: str) -> Callable[[JobRow], tuple[float, str]]:
    """Return the key of a column: numbers and times by their values, other columns by the text."""
    value = NUMBERS.get(name)
    if value:
        return lambda row: (value(row), "")
    return lambda row: (0.0, FIELDS[name].of(row))


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at else float("inf")


def _limit_s(row: JobRow) -> float:
    return float(row.job.get("time_limit_s") or "inf")


# The values that -S compares; a time that is not known, and no limit, come last.
NUMBERS: Final[dict[str, Callable[[JobRow], float]]] = {
    "timeused": elapsed_s,
    "timelimit": _limit_s,
    "timeleft": lambda row: _limit_s(row) - elapsed_s(row),
    "numnodes": nodes,
    "numcpus": lambda row: int(cpus(row)),
    "starttime": lambda row: _seconds(start(row)),
    "endtime": lambda row: _seconds(end(row)),
    "submittime": lambda row: _seconds(at(row, "submitted_at")),
    "prioritylong": lambda row: int(row.job.get("priority") or 0),
    "priority": lambda row: int(row.job.get("priority") or 0),
    "minmemory": lambda row: int(row.job.get("memory_bytes") or 0),
    "mincpus": lambda row: int(row.job.get("cpus_milli") or 0),
    "gres": lambda row: int(row.job.get("gpus") or 0) * int(row.job.get("gpu_share") or 100),
}


def sorted_rows(rows: Sequence[JobRow], given: Given) -> list[JobRow]:
    """Return the rows in the order of -S; without it waiting jobs come last, as in Slurm."""
    found = list(rows)
    keys = given.listed("sort")
    if not keys:
        order = {state: place for place, state in enumerate((*FIRST, states.PENDING))}
        return sorted(found, key=lambda row: order.get(states.state_of(row.job), -1))
    for key in reversed(keys):
        name = LETTERS.get(key.lstrip("+-"), "")
        if name:
            found.sort(key=sort_key(name), reverse=key.startswith("-"))
    return found
