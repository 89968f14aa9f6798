"""`muster ps`: list jobs, by default the active jobs of the user."""

from typing import Any, Final

import click

from libs.cli.elements import COLUMNS as ELEMENT_COLUMNS
from libs.cli.elements import element_row, read_elements
from libs.cli.flags.durations import instant_option
from libs.cli.gateway import ask
from libs.cli.jobs import COLUMNS, WIDE_COLUMNS, Job, row, utc_now, wide_row
from libs.cli.terminal.output import complain, listed, print_table, print_value
from libs.client.profile import Profile, read_profile

PAGE: Final = 500


@click.command(short_help="List jobs.")
@click.option("-a", "--all", "everyone", is_flag=True, help="Include other users and ended jobs.")
@click.option(
    "-s",
    "--state",
    multiple=True,
    metavar="STATE",
    help="Show only jobs in this state: pending, queued, running, failed ... (repeatable).",
)
@click.option(
    "-l",
    "--label",
    multiple=True,
    metavar="K=V",
    help="Show only jobs with this label (repeatable).",
)
@click.option(
    "-x", "--expand", is_flag=True, help="Also show the elements of arrays that have begun."
)
@click.option(
    "--elements", metavar="ARRAY", help="List the elements of this array instead of jobs."
)
@click.option("-u", "--user", metavar="USER", help="Show only jobs of this user (default: you).")
@click.option(
    "--kind",
    type=click.Choice(["job", "allocation", "replica"]),
    help="Show only jobs with a command, allocations, or replicas of models.",
)
@click.option(
    "--since",
    metavar="WHEN",
    help="Show jobs submitted since then: 2d (two days ago), or 2026-12-24T18:00:00Z.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    default=1000,
    show_default=True,
    help="Show at most N jobs.",
)
@listed
def command(
    everyone: bool,
    state: tuple[str, ...],
    label: tuple[str, ...],
    expand: bool,
    elements: str | None,
    user: str | None,
    kind: str | None,
    since: str | None,
    limit: int,
    form: str,
    no_headers: bool,
) -> None:
    """List jobs.

    \b
    muster ps                       # my active jobs
    muster ps --all                 # all jobs of all users
    muster ps -s failed --since 1d  # jobs that failed since yesterday
    muster ps --elements j4f7 -s failed  # the elements of an array that failed
    muster ps -o json | jq -r '.[].id'
    """
    profile = read_profile()
    if elements is not None:
        found = read_elements(profile, elements, state, limit)
        if not print_value(found, form):
            print_table(ELEMENT_COLUMNS, [element_row(each) for each in found], not no_headers)
        return
    chosen = user if user or everyone else profile.user
    query = {
        "all": 1 if everyone or state or since else None,
        "elements": 1 if expand or state else None,
        "state": ",".join(state),
        "label": list(label) or None,
        "user": chosen,
        "kind": kind,
        "since": _since(since),
    }
    jobs = read_jobs(profile, query, limit)
    if not print_value(jobs, form):
        _print(jobs, form == "wide", not no_headers)
        if not jobs and not (everyone or state or label or user or kind or since):
            _point_to_others(profile)


def read_jobs(profile: Profile, query: dict[str, Any], limit: int) -> list[Job]:
    """Return up to `limit` jobs that match, page after page."""
    jobs: list[Job] = []
    after: object = None
    while len(jobs) < limit:
        page = ask(
            profile,
            "GET",
            "/v1/jobs",
            {**query, "limit": min(PAGE, limit - len(jobs)), "after": after},
        )
        jobs += page["jobs"]
        after = page.get("next")
        if not after or not page["jobs"]:
            break
    return jobs


def _point_to_others(profile: Profile) -> None:
    """Print on stderr how many active jobs of other users there are."""
    count = len(read_jobs(profile, {}, PAGE))
    if count:
        more = " or more" if count == PAGE else ""
        complain(
            f"you have no active jobs; {count}{more} of other users: list them with muster ps --all"
        )


def _print(jobs: list[Job], wide: bool, headers: bool) -> None:
    now = utc_now()
    rows = [(wide_row if wide else row)(job, now) for job in jobs]
    print_table(WIDE_COLUMNS if wide else COLUMNS, rows, headers, wide)


def _since(text: str | None) -> str | None:
    try:
        return instant_option(text, utc_now())
    except ValueError as error:
        raise click.UsageError(f"--since: {error}") from None
