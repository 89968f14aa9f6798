"""scancel: end jobs, or send them a signal."""

from collections.abc import Sequence
from typing import Any, Final

from libs.cli.faults import Declined
from libs.cli.gateway import ask, job_path
from libs.cli.slurm import states
from libs.cli.slurm.array_numbers import numbers_of, remaining, waiting_of
from libs.cli.slurm.ids import id_of
from libs.cli.slurm.options import NONE, Given, Option, Table, parse
from libs.cli.slurm.requests import (
    Json,
    jobs_named,
    list_jobs,
    nodes_of,
    own_user,
    say,
    shown_id,
)
from libs.client.profile import Profile, read_profile
from libs.common.errors import Refused
from libs.common.life import job_life

PROGRAM: Final = "scancel"
OPTIONS: Final = (
    Option("user", "u"), Option("me", "", NONE), Option("name", "n"), Option("jobname", ""),
    Option("state", "t"), Option("partition", "p"), Option("nodelist", "w"),
    Option("signal", "s"),
    Option("quiet", "Q", NONE), Option("verbose", "v", NONE), Option("hurry", "H", NONE),
    Option("ctld", "", NONE), Option("wait", "", NONE),
)  # fmt: skip
REFUSED: Final = {
    "account": "your key determines the tenant: use -u USER",
    "interactive": "list the jobs with squeue first, then give their ids",
    "qos": "Muster has no qualities of service",
    "reservation": "list its jobs with squeue -R NAME, and give their ids",
    "wckey": "use labels: muster ps --label K=V -o json",
    "clusters": "choose the cluster with MUSTER_URL or muster login",
    "sibling": "choose the cluster with MUSTER_URL or muster login",
    "cron": "Muster has no scrontab",
    "batch": "for a signal to a process of the job use muster exec JOB -- kill -SIGNAL PID",
    "full": "for a signal to processes of the job use muster exec JOB -- kill -SIGNAL PID",
}
LETTERS_REFUSED: Final = {
    "A": "account", "i": "interactive", "q": "qos", "R": "reservation", "M": "clusters",
    "b": "batch", "f": "full",
}  # fmt: skip
TABLE: Final = Table(PROGRAM, OPTIONS, REFUSED, LETTERS_REFUSED)
FILTERS: Final = ("user", "me", "name", "jobname", "state", "partition", "nodelist")
STATES: Final = ("PENDING", "RUNNING", "SUSPENDED")
ENDED: Final = 409
# Elements of an array that are named one by one.
APART_MAX: Final = 1_000
# The signals that end a job, by what -s may name.
SIGNALS: Final = {
    "TERM": "TERM", "15": "TERM", "KILL": "KILL", "9": "KILL", "INT": "INT", "2": "INT",
}  # fmt: skip


def main(words: Sequence[str]) -> int:
    given = parse(TABLE, words)
    refs = [ref for word in given.rest for ref in word.split(",") if ref]
    filters = [name for name in FILTERS if given.has(name)]
    if not refs and not filters:
        raise Refused("no job: give ids, or --user, --me, --name, --state, --partition, --nodelist")
    signal = signal_of(given.last("signal")) if given.has("signal") else ""
    _states(given.last("state"))
    profile = read_profile()
    missing: list[str] = []
    if filters:
        own = own_user(profile) if given.has("me") else ""
        jobs = jobs_named(profile, refs, missing.append) if refs else _listed(profile, given, own)
        for ref in missing:
            say(PROGRAM, f"error: Kill job error on job id {ref}: Invalid job id specified")
        refs = selected(jobs, given, own)
    body: dict[str, Any] = {"user": profile.user}
    if signal:
        body["signal"] = signal
    codes = [_cancel(profile, ref, body, given.has("quiet")) for ref in refs]
    return max([int(bool(missing)), *codes])


def signal_of(text: str) -> str:
    """Return the signal of -s. Raises Refused for one that does not ask a job to end."""
    found = SIGNALS.get(text.upper().removeprefix("SIG"))
    if found is None:
        raise Refused(
            f"--signal={text}: the job would be cancelled; for a signal that it goes on after use "
            f"muster exec JOB -- kill -s {text or 'SIGNAL'} PID (scancel takes TERM, KILL and INT)"
        )
    return found


def _users(given: Given, own: str) -> list[str]:
    return [own] if given.has("me") else given.listed("user")


def _listed(profile: Profile, given: Given, own: str) -> list[Json]:
    users = _users(given, own)
    return list_jobs(profile, {"elements": 1, "user": users[0] if len(users) == 1 else None})


def selected(jobs: Sequence[Json], given: Given, own: str) -> list[str]:
    """Return the ids of the jobs that match all filters; elements match by their own state.

    An array is selected as a whole only if each of its elements matches. Otherwise -t PENDING
    selects its elements that have not begun, one by one. Raises Refused if those are too many.
    """
    wanted = _states(given.last("state"))
    found = [job for job in jobs if _matches(job, given, own)]
    whole = {
        str(job["id"]) for job in found if job.get("array") and _whole(job, jobs, wanted, given)
    }
    chosen = [
        str(job["id"])
        for job in found
        if (str(job["id"]) in whole if job.get("array") else job.get("element_of") not in whole)
        and states.state_of(job) in wanted
    ]
    if states.PENDING in wanted and not given.has("nodelist"):
        for job in found:
            if job.get("array") and str(job["id"]) not in whole:
                chosen += _not_begun(job, jobs)
    return chosen


def _whole(
    array: Json, jobs: Sequence[Json], wanted: tuple[states.SlurmState, ...], given: Given
) -> bool:
    """Return whether the filters select every element of an array."""
    if given.has("nodelist"):
        return False
    if states.PENDING in wanted and states.RUNNING in wanted:
        return True
    if states.PENDING not in wanted or states.state_of(array) != states.PENDING:
        return False
    live = {states.state_of(job) for job in _elements(array, jobs)} & {*states.ACTIVE}
    return not live - {states.PENDING}


def _not_begun(array: Json, jobs: Sequence[Json]) -> list[str]:
    """Return the ids of an array's elements that have not begun, the last one first.

    Elements begin in the order of their numbers, so one that is named late could begin meanwhile.
    """
    if states.state_of(array) != states.PENDING:
        return []
    queued = sum(job["state"] == job_life.QUEUED for job in _elements(array, jobs))
    waiting = waiting_of(array, queued)
    name = str(array["id"])
    if waiting > APART_MAX:
        raise Refused(
            f"--state: {waiting} elements of the array {shown_id(name)} wait while others run, and "
            f"scancel names at most {APART_MAX} one by one; nothing is cancelled: name some, for "
            f"example scancel {shown_id(name)}_3 (squeue -r lists them), or cancel the whole array"
        )
    left = numbers_of(remaining(str(array["array"]["numbers"]), waiting))
    return [f"{name}_{number}" for number in reversed(list(left))]


def _elements(array: Json, jobs: Sequence[Json]) -> list[Json]:
    return [job for job in jobs if job.get("element_of") == array["id"]]


def _matches(job: Json, given: Given, own: str) -> bool:
    """Return whether a job matches all filters but the state."""
    users = _users(given, own)
    names = given.listed("name") or given.listed("jobname")
    queues = given.listed("partition")
    nodes = set(nodes_of("nodelist", given.last("nodelist")))
    return bool(
        (not users or job["user"] in users)
        and (not names or job["name"] in names)
        and (not queues or job["queue"] in queues)
        and (not nodes or job.get("array") or nodes & set(job["node_ids"]))
    )


def _states(text: str) -> tuple[states.SlurmState, ...]:
    """Return the states of -t. Raises Refused for another one than Slurm accepts here."""
    if not text:
        return states.ACTIVE
    found = states.states_named(text)
    if any(state.name not in STATES for state in found):
        raise Refused(f"--state={text}: use {', '.join(STATES)}")
    running = states.RUNNING in found
    return (*found, states.CONFIGURING) if running else found


def _cancel(profile: Profile, ref: str, body: dict[str, Any], quiet: bool) -> int:
    try:
        ask(profile, "POST", job_path(id_of(ref), "cancel"), body=body)
    except Declined as error:
        if error.status == ENDED and "candidates" not in error.body:
            if not quiet:
                text = f"Kill job error on job id {shown_id(ref)}: Job/step already completing"
                say(PROGRAM, f"error: {text} or completed")
            return 0
        say(PROGRAM, f"error: Kill job error on job id {ref}: {error}")
        return 1
    return 0
