"""The requests of Slurm's commands to the gateway.

Tests: tests/integration/test_slurm_cluster.py.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from libs.cli.faults import Declined
from libs.cli.formats.sbatch_values import nodes_named
from libs.cli.gateway import ask, job_path
from libs.cli.slurm import reasons
from libs.cli.slurm.array_numbers import remaining, waiting_of
from libs.cli.slurm.ids import id_of, number_of
from libs.cli.slurm.job_columns import JobRow
from libs.cli.slurm.states import PENDING, state_of
from libs.client.profile import Profile
from libs.common.errors import MusterError, Refused
from libs.common.life import job_life

Json = dict[str, Any]

PAGE: Final = 500
ROWS_MAX: Final = 100_000
# Explanations take the scheduler time, so a list asks for few of them.
WHY_MAX: Final = 8
WHY_AT_ONCE: Final = 4
WHY_S: Final = 5.0
NUMERIC: Final = "MUSTER_SLURM_NUMERIC_IDS"
NOT_THERE: Final = (404, 410)


def shown_id(job_id: str) -> str:
    """Return the id as it is printed: a number if MUSTER_SLURM_NUMERIC_IDS is 1."""
    return number_of(job_id) if os.environ.get(NUMERIC) == "1" else job_id


def say(program: str, text: str) -> None:
    """Print a note or an error on stderr, as Slurm's commands do."""
    print(f"{program}: {' '.join(text.split())}", file=sys.stderr, flush=True)


def own_user(profile: Profile) -> str:
    """Return the user whose jobs are one's own: the profile's, else the key's. Raises Refused."""
    user = profile.user or str(ask(profile, "GET", "/v1/whoami").get("user") or "")
    if not user:
        raise Refused("the key in use belongs to no user: name one with MUSTER_USER or --user")
    return user


def nodes_of(flag: str, text: str) -> list[str]:
    """Return the nodes that a flag names. Raises Refused."""
    try:
        return nodes_named(text)
    except ValueError as error:
        raise Refused(f"--{flag}={text}: {error}") from error


def list_jobs(profile: Profile, query: Json) -> list[Json]:
    """Return the jobs that match, page after page, at most ROWS_MAX."""
    jobs: list[Json] = []
    after: object = None
    while len(jobs) < ROWS_MAX:
        page = ask(profile, "GET", "/v1/jobs", {**query, "limit": PAGE, "after": after})
        jobs += page["jobs"]
        after = page.get("next")
        if not after or not page["jobs"]:
            break
    return jobs


def jobs_named(profile: Profile, refs: Iterable[str], missing: Callable[[str], None]) -> list[Json]:
    """Return the jobs with these ids; `missing` is called for an id that the gateway refuses."""
    found: list[Json] = []
    for ref in refs:
        try:
            job = ask(profile, "GET", job_path(id_of(ref)))
        except Declined as error:
            if error.status not in NOT_THERE:
                raise
            missing(ref)
            continue
        found.append(job)
        if job.get("array"):
            name = str(job["id"])
            query = {"elements": 1, "all": 1, "tenant": job.get("tenant"), "name": job.get("name")}
            found += [each for each in list_jobs(profile, query) if each.get("element_of") == name]
    return found


def rows_of(profile: Profile, jobs: Sequence[Json], explain: bool = True) -> list[JobRow]:
    """Return the rows for these jobs, with the reasons of the waiting ones."""
    now = datetime.now(UTC)
    jobs = [_with_numbers_left(job, jobs) for job in jobs]
    waiting = [job for job in jobs if state_of(job) == PENDING and not reasons.word_of_job(job)]
    answers = _explained(profile, waiting) if explain else {}
    words = reasons.words_of(waiting, answers)
    return [_row(job, words, answers.get(str(job["id"])), now) for job in jobs]


def _with_numbers_left(job: Json, jobs: Sequence[Json]) -> Json:
    """Return an array with the numbers of the elements that have not begun."""
    if not job.get("array") or job["state"] not in (job_life.PENDING, job_life.QUEUED):
        return job
    own = [each for each in jobs if each.get("element_of") == job["id"]]
    queued = sum(each["state"] == job_life.QUEUED for each in own)
    numbers = remaining(job["array"]["numbers"], waiting_of(job, queued))
    return {**job, "array": {**job["array"], "numbers": numbers}}


def _row(job: Json, words: Mapping[str, str], answer: Json | None, now: datetime) -> JobRow:
    word = reasons.word_of_job(job) or words.get(str(job["id"]), reasons.PRIORITY)
    in_s = ((answer or {}).get("estimate") or {}).get("in_s")
    expected = now + timedelta(seconds=float(in_s)) if in_s is not None else None
    return JobRow(job, word, now, shown_id, expected)


def _explained(profile: Profile, jobs: Sequence[Json]) -> dict[str, Json]:
    """Return the explanations of at most WHY_MAX jobs: first one for each kind of request."""
    until_s = time.monotonic() + WHY_S
    first = reasons.first_of_each_kind(jobs)[:WHY_MAX]
    found = _answers(profile, first, until_s)
    others = reasons.needing_own_answers(jobs, found)
    return found | _answers(profile, others[: WHY_MAX - len(first)], until_s)


def _answers(profile: Profile, jobs: Sequence[Json], until_s: float) -> dict[str, Json]:
    """Return the explanations that come in time; the others are left out."""

    def answer(job: Json) -> tuple[str, Json | None]:
        left_s = until_s - time.monotonic()
        try:
            path = job_path(str(job["id"]), "why")
            found = ask(profile, "GET", path, answer_s=max(0.1, left_s)) if left_s > 0 else None
        except MusterError:
            found = None
        return str(job["id"]), found

    if not jobs:
        return {}
    with ThreadPoolExecutor(WHY_AT_ONCE) as pool:
        return {job_id: found for job_id, found in pool.map(answer, jobs) if found is not None}
