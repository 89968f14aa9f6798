"""`muster submit`: submit jobs from files, or one command.

Stdout gets only the ids, so that scripts can read them.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from libs.cli.faults import Declined
from libs.cli.flags.jobflags import FlagValues, job_body, job_flags, was_given, working_directory
from libs.cli.formats.job_fields import Written
from libs.cli.jobs import Job
from libs.cli.submitting import submit
from libs.cli.terminal.output import complain, formatted, print_value
from libs.client.errors import ApiError
from libs.client.profile import Profile, read_profile
from libs.common.errors import Refused


@click.command(short_help="Submit jobs from files, or one command, and print their ids.")
@click.argument("what", nargs=-1, metavar="FILE... | -- COMMAND...")
@click.option(
    "--array",
    metavar="NUMBERS[%N]",
    help="Submit a job array; 0-99%4 runs 100 elements, at most 4 at a time.",
)
@click.option(
    "--short",
    is_flag=True,
    help="Run an array whose elements take only milliseconds or seconds: each node runs many of "
    "them one after another. Needs --array.",
)
@click.option(
    "--dry-run", is_flag=True, help="Check the jobs with the gateway, and submit nothing."
)
@click.option("--all-or-nothing", is_flag=True, help="Submit no job if one of them is refused.")
@job_flags
@formatted
@click.pass_context
def command(
    ctx: click.Context,
    /,
    what: tuple[str, ...],
    dry_run: bool,
    all_or_nothing: bool,
    form: str,
    **values: object,
) -> int:
    """Submit jobs from files, or one command, and print their ids.

    \b
    muster submit job.yaml
    muster submit jobs/*.yaml                 # each job by itself; see --all-or-nothing
    muster submit train.sbatch                # a script with #SBATCH lines
    muster submit pod.yaml                    # a Kubernetes Pod or Job
    muster submit --gpus 2 --name train -- python train.py
    cat jobs.yaml | muster submit -
    muster submit --array 0-99999%16 --short --gpus 0 -- ./score.sh
    muster submit --array 0-99%4 -- sh -c 'python train.py --seed $MUSTER_ARRAY_TASK_ID'
    JOB=$(muster submit job.yaml) && muster wait $JOB

    \b
    A job file holds one or more YAML documents:
      name: train
      command: python train.py --epochs 3   # a text for /bin/sh -c, or a list
      gpus: 2
      time_limit: 1h30m
      env: {SEED: 1}

    For each part of a script or manifest that Muster ignores, the command prints a warning with its
    line. To see the resulting job, use --dry-run -o json.
    """
    profile = read_profile()
    written = _written(ctx, what, profile, values)
    answers = submit(profile, written, dry_run, all_or_nothing)
    accepted: list[Job] = []
    try:
        code = _print_each(zip(written, answers, strict=True), accepted, dry_run, form)
    except ApiError:
        if accepted:
            print_value(accepted, form)
        raise
    print_value(accepted if len(written) > 1 else accepted[0], form)
    return code


def _print_each(
    answers: Iterable[tuple[Written, Job | Declined]], accepted: list[Job], dry_run: bool, form: str
) -> int:
    """Print the answers, add the accepted jobs to `accepted`, and return the exit code.

    Raises ApiError if a request fails; the jobs before it are in `accepted`.
    """
    code = 0
    for (place, _, warnings), answer in answers:
        if isinstance(answer, Declined):
            complain(str(answer))
            code = answer.exit_code
            continue
        answer["warnings"] = [*warnings, *(answer.get("warnings") or ())]
        accepted.append(answer)
        if form in ("table", "wide"):
            print(f"{place or 'the job'} is valid" if dry_run else answer["id"], flush=True)
        for warning in answer["warnings"]:
            complain(f"warning: {warning}")
    return code


def _written(
    ctx: click.Context, what: tuple[str, ...], profile: Profile, values: FlagValues
) -> list[Written]:
    """Return the jobs to submit. All files are checked before the first job is submitted."""
    if not what and values["image"]:
        return [Written("", job_body((), profile.user, values))]
    if not what:
        raise click.UsageError("no job: give a job file, or a command after --", ctx)
    if "--" in ctx.obj:
        return [Written("", job_body(what, profile.user, values))]
    given = [name for name, value in values.items() if was_given(name, value)]
    if given:
        raise click.UsageError(
            f"job options need a command (after --); for a job file, set '{given[0]}' in the file",
            ctx,
        )
    return [written for name in what for written in _read(name, profile)]


def _read(name: str, profile: Profile) -> list[Written]:
    from libs.cli.formats.jobfile import read_jobs
    from libs.cli.formats.sbatch import is_script, read_script

    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text()
    except UnicodeDecodeError as error:
        raise Refused(
            f"{name} is not a text file: give a job file, a script or a manifest"
        ) from error
    except OSError as error:
        raise Refused(
            f"cannot read the job file {name}: {error.strerror}; to submit a command, put "
            "it after --"
        ) from error
    name = "stdin" if name == "-" else name
    jobs = [read_script(text, name, os.environ)] if is_script(text) else read_jobs(text, name)
    return [written._replace(job=_filled(written.job, profile)) for written in jobs]


def _filled(job: Job, profile: Profile) -> Job:
    workdir = (
        {}
        if job.get("upload") or (job.get("image") and not job.get("workdir"))
        else {"workdir": working_directory(job.get("workdir"))}
    )
    return {"user": profile.user, **job, **workdir}
