"""Jobs that ended so long ago that gateways keep only their facts, for sacct.

A row is made from the facts of the job, in the shape of GET /v1/jobs. Tests:
tests/unit/test_slurm_ended_jobs.py and tests/integration/test_slurm_history.py.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from libs.cli.faults import Declined
from libs.cli.gateway import ask, job_path
from libs.cli.terminal.history import read_history
from libs.client.profile import Profile
from libs.common.life import job_life
from libs.common.model import JobSpec
from libs.common.state.cluster import ENDED_JOBS_KEPT
from libs.common.state.ordering import DEFAULT_QUEUE

Json = dict[str, Any]

# Facts that end a job.
ENDS: Final = "job.closed,job.rejected"
PAGE: Final = 1_000
# Pages of facts that one command reads, and jobs whose facts it reads.
PAGES_MAX: Final = 200
JOBS_MAX: Final = 1_000
GONE: Final = (404, 410)


def job_of(facts: Sequence[Json], array: Sequence[Json] = ()) -> Json | None:
    """Return the job that the facts describe; None if they do not say what was submitted.

    `array` are the facts of the array, for one of its elements.
    """
    submitted = next((each for each in (*array, *facts) if each["kind"] == "job.submitted"), None)
    if submitted is None:
        return None
    job = _submitted(submitted)
    for each in facts:
        if (apply := _APPLY.get(each["kind"])) is not None:
            apply(job, each["fact"], each.get("at"))
    return job


def _submitted(line: Json) -> Json:
    fact = line["fact"]
    spec = msgspec.convert(fact["spec"], JobSpec, strict=False)
    return {
        **msgspec.to_builtins(spec),
        "id": fact["job_id"],
        "user": fact.get("user", ""),
        "tenant": fact.get("tenant", ""),
        "queue": spec.queue or DEFAULT_QUEUE,
        "state": job_life.PENDING,
        "submitted_at": line.get("at"),
        "attempt": 0,
        "node_ids": [],
        "members": [],
        "after": [],
        "array": None,
        "element_of": "",
    }


def _begun(job: Json, fact: Json, at: str | None) -> None:
    job.update(id=fact["job_id"], element_of=fact["array"], state=job_life.QUEUED, queued_at=at)


def _queued(job: Json, fact: Json, at: str | None) -> None:
    job.update(state=job_life.QUEUED, queued_at=at)


def _placed(job: Json, fact: Json, at: str | None) -> None:
    nodes = [member["node_id"] for member in fact["members"]]
    job.update(state=job_life.PLACED, attempt=fact["attempt"], node_ids=nodes, started_at=None)
    job["members"] = []


def _started(job: Json, fact: Json, at: str | None) -> None:
    if fact["attempt"] == job["attempt"] and not job.get("started_at"):
        job.update(state=job_life.RUNNING, started_at=at)


def _finished(job: Json, fact: Json, at: str | None) -> None:
    if fact["attempt"] == job["attempt"]:
        job["members"].append({"reason": fact["reason"]})


def _closed(job: Json, fact: Json, at: str | None) -> None:
    job.update(state=fact["outcome"], reason=fact.get("reason", ""), ended_at=at)
    job["exit_code"] = fact.get("exit_code")


def _rejected(job: Json, fact: Json, at: str | None) -> None:
    job.update(state=job_life.REJECTED, reason=fact["reason"], ended_at=at)


_APPLY: Final[dict[str, Callable[[Json, Json, str | None], None]]] = {
    "array.element_begun": _begun,
    "job.queued": _queued,
    "job.requeued": _queued,
    "job.placed": _placed,
    "job.started": _started,
    "job.finished": _finished,
    "job.closed": _closed,
    "job.rejected": _rejected,
}


def read_job(profile: Profile, job_id: str) -> Json | None:
    """Return a job from its facts; None if the gateway does not know it."""
    try:
        facts = read_history(profile, job_id)
        begun = next((each for each in facts if each["kind"] == "array.element_begun"), None)
        if begun is None:
            return job_of(facts)
        path = job_path(begun["fact"]["array"], "history")
        return job_of(facts, ask(profile, "GET", path, {"limit": 1})["facts"])
    except Declined as error:
        if error.status in GONE:
            return None
        raise


def ended_between(
    profile: Profile, since: datetime, until: datetime, known: set[str], say: Callable[[str], None]
) -> list[Json]:
    """Return the jobs that ended in a period and that gateways list no more.

    `known` are the listed ones. `say` is told what was left out.
    """
    counts = ask(profile, "GET", "/v1/cluster")["jobs"]
    if sum(counts.get(state, 0) for state in job_life.ENDED) < ENDED_JOBS_KEPT:
        return []  # no job has left the list
    names, is_all = _ended_names(profile, since, until)
    names = [name for name in names if name not in known]
    if not is_all or len(names) > JOBS_MAX:
        say(
            f"only {JOBS_MAX} of the jobs that ended in this period before those that the gateway "
            "lists are shown: give a shorter period with -S and -E, or use muster audit export"
        )
    return [job for name in names[-JOBS_MAX:] if (job := read_job(profile, name)) is not None]


def _ended_names(profile: Profile, since: datetime, until: datetime) -> tuple[list[str], bool]:
    """Return the ids of the jobs that ended in a period, and whether these are all."""
    query: Json = {"kind": ENDS, "limit": PAGE, "after": _commit_at(profile, since)}
    query |= {"since": _text(since), "until": _text(until)}
    names: list[str] = []
    for _ in range(PAGES_MAX):
        page = ask(profile, "GET", "/v1/events", query)
        names += [str(each["fact"]["job_id"]) for each in page["events"]]
        if not page.get("more"):
            return names, True
        query["after"] = page["next"]
    return names, False


def _commit_at(profile: Profile, since: datetime) -> int:
    """Return a commit before the time; 0 if the time is before the log that is not trimmed."""
    try:
        found = ask(profile, "GET", "/v1/moments", {"at": _text(since)})["moment"]
    except Declined as error:
        if error.status in (*GONE, 422):
            return 0
        raise
    return max(0, int(found["seq"]) - 1) if found else 0


def _text(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
