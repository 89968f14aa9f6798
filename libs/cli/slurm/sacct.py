"""sacct: list jobs with their ends, also those that ended long ago (`ended_jobs.py`)."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from libs.cli.slurm import ended_jobs, states
from libs.cli.slurm.columns import accounting_lines, parsable_lines, sacct
from libs.cli.slurm.ids import id_of
from libs.cli.slurm.job_columns import (
    ACCOUNTING,
    ACCOUNTING_BRIEF,
    ACCOUNTING_DEFAULT,
    JobRow,
    at,
)
from libs.cli.slurm.options import NONE, Given, Option, Table, parse
from libs.cli.slurm.requests import Json, jobs_named, list_jobs, nodes_of, own_user, rows_of, say
from libs.cli.slurm.times import parse_when
from libs.client.profile import Profile, read_profile
from libs.common.errors import Refused
from libs.common.life import job_life

PROGRAM: Final = "sacct"
OPTIONS: Final = (
    Option("jobs", "j"), Option("starttime", "S"), Option("endtime", "E"), Option("format", "o"),
    Option("parsable2", "P", NONE), Option("parsable", "p", NONE), Option("delimiter", ""),
    Option("noheader", "n", NONE), Option("allocations", "X", NONE), Option("user", "u"),
    Option("allusers", "a", NONE), Option("state", "s"), Option("name", ""),
    Option("brief", "b", NONE),
    Option("partition", "r"), Option("nodelist", "N"), Option("accounts", "A"),
    Option("duplicates", "D", NONE), Option("array", "", NONE), Option("noconvert", "", NONE),
    Option("truncate", "T", NONE), Option("units", ""), Option("verbose", "v", NONE),
    Option("helpformat", "e", NONE),
)  # fmt: skip
REFUSED: Final = {
    "long": "name the columns: --format=JobID,JobName,State,... (sacct --helpformat lists them)",
    "json": "use muster ps --all -o json",
    "yaml": "use muster ps --all -o yaml",
    "batch-script": "use muster describe JOB -o json, whose command holds the script",
    "env-vars": "the environment of a job is not shown",
    "clusters": "choose the cluster with MUSTER_URL or muster login",
    "qos": "Muster has no qualities of service",
    "wckeys": "use labels: muster ps --label K=V",
    "associations": "use --accounts or --user",
    "uid": "give the name: --user",
    "gid": "use --accounts",
    "group": "use --accounts",
    "timelimit-min": "filter the output of --format=JobID,TimelimitRaw",
    "timelimit-max": "filter the output of --format=JobID,TimelimitRaw",
    "file": "the facts come from the gateway; for an archive use muster audit",
    "completion": "the facts come from the gateway",
}
LETTERS_REFUSED: Final = {
    "l": "long", "B": "batch-script", "M": "clusters", "q": "qos", "W": "wckeys", "f": "file",
    "x": "associations", "g": "gid", "k": "timelimit-min", "K": "timelimit-max", "c": "completion",
}  # fmt: skip
TABLE: Final = Table(PROGRAM, OPTIONS, REFUSED, LETTERS_REFUSED)


def main(words: Sequence[str]) -> int:
    given = parse(TABLE, words)
    if given.has("helpformat"):
        print("\n".join(sorted(field.title for field in ACCOUNTING.values())))
        return 0
    otherwise = os.environ.get("SACCT_FORMAT") or ACCOUNTING_DEFAULT
    text = given.last("format") or (ACCOUNTING_BRIEF if given.has("brief") else otherwise)
    pieces = sacct(text, ACCOUNTING)
    now = datetime.now(UTC)
    profile = read_profile()
    needs_reason = any(piece.field == "reason" for piece in pieces)
    jobs = [job for job in _jobs(profile, given, now) if _wanted(job, given)]
    rows = rows_of(profile, jobs, explain=needs_reason)
    if given.has("starttime") or not given.has("jobs"):
        rows = _between(rows, _window(given, now))
    headers = not given.has("noheader")
    ends = given.has("parsable")
    if ends or given.has("parsable2"):
        found = parsable_lines(
            pieces, ACCOUNTING, rows, headers, given.last("delimiter", "|"), ends
        )
    else:
        found = accounting_lines(pieces, ACCOUNTING, rows, headers)
    for line in found:
        print(line)
    return 0


def _jobs(profile: Profile, given: Given, now: datetime) -> list[Json]:
    """Return the jobs with these ids, or those that the filters may let through."""
    if refs := given.listed("jobs"):
        return _named(profile, refs)
    users = given.listed("user")
    if not users and not given.has("allusers"):
        users = [own_user(profile)]
    query = {"elements": 1, "all": 1, "user": users[0] if len(users) == 1 else None}
    found = list_jobs(profile, query)
    since, until = _window(given, now)
    known = {str(job["id"]) for job in found}
    found += ended_jobs.ended_between(profile, since, until, known, lambda text: say(PROGRAM, text))
    return [job for job in found if not users or job["user"] in users]


def _named(profile: Profile, refs: Sequence[str]) -> list[Json]:
    """Return the jobs with these ids; of those that ended long ago only the facts are left."""
    missing: list[str] = []
    found = jobs_named(profile, refs, missing.append)
    read = [ended_jobs.read_job(profile, id_of(ref)) for ref in missing]
    return found + [job for job in read if job is not None]


def _wanted(job: Json, given: Given) -> bool:
    """Return whether the row is listed; an array is its elements, unless some have not begun."""
    names, queues, tenants = (given.listed(name) for name in ("name", "partition", "accounts"))
    nodes = nodes_of("nodelist", given.last("nodelist"))
    wanted = states.states_named(given.last("state")) if given.has("state") else states.STATES
    over = job.get("array") and job["state"] not in (job_life.PENDING, job_life.QUEUED)
    return (
        not over
        and states.state_of(job) in wanted
        and (not names or job["name"] in names)
        and (not queues or job["queue"] in queues)
        and (not tenants or job["tenant"] in tenants)
        and (not nodes or bool(set(nodes) & set(job["node_ids"])))
    )


def _window(given: Given, now: datetime) -> tuple[datetime, datetime]:
    """Return the period of -S (today 00:00) and -E (now). Raises Refused."""
    since = parse_when(given.last("starttime", "midnight"), now)
    until = parse_when(given.last("endtime", "now"), now)
    if until < since:
        raise Refused(f"--endtime {until:%Y-%m-%dT%H:%M:%S} is before --starttime: swap them")
    return since, until


def _between(rows: Sequence[JobRow], window: tuple[datetime, datetime]) -> list[JobRow]:
    """Return the jobs that were known in the period."""
    since, until = window
    return [
        row
        for row in rows
        if (begun := at(row, "submitted_at")) is None
        or (begun <= until and ((ended := at(row, "ended_at")) is None or ended >= since))
    ]
