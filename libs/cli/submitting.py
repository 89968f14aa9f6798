"""Submits the jobs of one command, with as few requests as possible.

Each job is accepted or refused by itself, unless all of them are wanted or none.
"""

from collections.abc import Iterator
from typing import Final

from libs.cli.faults import Declined
from libs.cli.formats.job_fields import Written
from libs.cli.formats.uploading import with_upload
from libs.cli.gateway import ask
from libs.cli.jobs import Job
from libs.client.errors import ApiError
from libs.client.profile import Profile
from libs.common.errors import Refused
from libs.common.model import BATCH_JOBS_MAX

# The answers of a gateway that has no batches.
NO_ROUTE: Final = (404, 405)


def submit(
    profile: Profile, written: list[Written], dry_run: bool, all_or_nothing: bool
) -> Iterator[Job | Declined]:
    """Yield the answer for each job, in order.

    Raises Declined for a single job, and if a request fails: then it names the first job without an
    answer.
    """
    if len(written) == 1:
        yield _single(profile, written[0], dry_run)
        return
    if all_or_nothing and len(written) > BATCH_JOBS_MAX:
        raise Refused(
            f"--all-or-nothing: {len(written)} jobs are too many: give at most {BATCH_JOBS_MAX}, "
            "or leave out --all-or-nothing"
        )
    yield from _batches(profile, written, dry_run, all_or_nothing)


def _batches(
    profile: Profile, written: list[Written], dry_run: bool, all_or_nothing: bool
) -> Iterator[Job | Declined]:
    from libs.client import batches

    jobs = [with_upload(profile, each.job, dry_run) for each in written]
    done = 0
    for part in [jobs] if all_or_nothing else batches.split(jobs):
        found, left = written[done : done + len(part)], written[done:]
        done += len(part)
        try:
            answer = ask(
                profile,
                method="POST",
                path=batches.PATH,
                query={"dry_run": "true" if dry_run else None},
                body={"jobs": part, "all_or_nothing": all_or_nothing},
            )
        except ApiError as error:
            if all_or_nothing or error.status not in NO_ROUTE:
                raise _placed(error, written, left) from error
            for each in found:
                yield _or_refusal(profile, each, dry_run)
            continue
        for each, result in zip(found, answer["jobs"], strict=True):
            problem = result.get("problem")
            yield (
                result.get("job") or result.get("checked")
                if problem is None
                else _at(each, Declined(problem["detail"], problem["status"], problem))
            )


def _single(profile: Profile, written: Written, dry_run: bool) -> Job:
    try:
        return ask(
            profile,
            method="POST",
            path="/v1/jobs",
            query={"dry_run": "true" if dry_run else None},
            body=with_upload(profile, written.job, dry_run),
        )
    except Declined as error:
        raise _at(written, error) from error


def _or_refusal(profile: Profile, written: Written, dry_run: bool) -> Job | Declined:
    try:
        return _single(profile, written, dry_run)
    except Declined as error:
        return error


def _at(written: Written, error: Declined) -> Declined:
    """Return the error with the place of its job."""
    text = f"{written.place}: {error}" if written.place else str(error)
    return Declined(text, error.status, error.body)


def _placed(error: ApiError, written: list[Written], left: list[Written]) -> ApiError:
    """Return the error of a whole batch, with the place of the job that it is about.

    `left` are the jobs without an answer.
    """
    if len(left) < len(written):
        rest = " and the jobs after it" if len(left) > 1 else ""
        text = f"the request for {left[0].place}{rest} failed: {error}"
        return Declined(text, error.status, error.body)
    job = error.body.get("job")
    if not isinstance(job, int) or not 0 <= job < len(written):
        return error
    return Declined(
        str(error).replace(f"jobs[{job}]", written[job].place, 1), error.status, error.body
    )
