"""scancel: end jobs, or send them a signal."""

from collections.abc import Sequence
from typing import Any, Final

from libs.cli.faults import Declined
from libs.cli.formats.sbatch_values import nodes_named
from libs.cli.gateway import ask, job_path
from libs.cli.slurm import states
from libs.cli.slurm.ids import id_of
from libs.cli.slurm.options import NONE, Given, Option, Table, parse
from libs.cli.slurm.requests import list_jobs, say, shown_id
from libs.client.profile import Profile, read_profile
from libs.common.errors import Refused

PROGRAM: Final = "scancel"
OPTIONS: Final = (
    Option("user", "u"), Option("me", "", NONE), Option("name", "n"), Option("jobname", ""),
    Option("state", "t"), Option("partition", "p"), Option("nodelist", "w"),
    Option("signal", "s"), Option("batch", "b", NONE), Option("full", "f", NONE),
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
}
LETTERS_REFUSED: Final = {
    "A": "account", "i": "interactive", "q": "qos", "R": "reservation", "M": "clusters",
}  # fmt: skip
TABLE: Final = Table(PROGRAM, OPTIONS, REFUSED, LETTERS_REFUSED)
FILTERS: Final = ("user", "me", "name", "jobname", "state", "partition", "nodelist")
STATES: Final = ("PENDING", "RUNNING", "SUSPENDED")
ENDED: Final = 409


def main(words: Sequence[str]) -> int:
    given = parse(TABLE, words)
    refs = [ref for word in given.rest for ref in word.split(",") if ref]
    filters = [name for name in FILTERS if given.has(name)]
    if not refs and not filters:
        raise Refused("no job: give ids, or --user, --me, --name, --state, --partition, --nodelist")
    profile = read_profile()
    if not refs:
        refs = [str(job["id"]) for job in _matching(profile, given)]
    body: dict[str, Any] = {"user": profile.user}
    if signal := given.last("signal"):
        body["signal"] = signal.upper().removeprefix("SIG")
    return max([0, *(_cancel(profile, ref, body, given.has("quiet")) for ref in refs)])


def _matching(profile: Profile, given: Given) -> list[dict[str, Any]]:
    users = [profile.user] if given.has("me") else given.listed("user")
    names = given.listed("name") or given.listed("jobname")
    wanted = _states(given.last("state"))
    nodes = set(nodes_named(given.last("nodelist")))
    found = list_jobs(profile, {"user": users[0] if len(users) == 1 else None})
    queues = given.listed("partition")
    return [
        job
        for job in found
        if (not users or job["user"] in users)
        and (not names or job["name"] in names)
        and (not queues or job["queue"] in queues)
        and (not nodes or nodes & set(job["node_ids"]))
        and states.state_of(job) in wanted
    ]


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
