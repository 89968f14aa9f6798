"""`muster ps`: mine and alive, unless told otherwise."""

from typing import Any, Final

import click

from libs.cli.flags.durations import instant_option
from libs.cli.gateway import ask
from libs.cli.jobs import COLUMNS, WIDE_COLUMNS, Job, row, utc_now, wide_row
from libs.cli.profile import Profile, read_profile
from libs.cli.terminal.output import listed, print_table, print_value

PAGE: Final = 500


@click.command(short_help="List jobs.")
@click.option("-a", "--all", "everyone", is_flag=True, help="Of all users, and ended ones too.")
@click.option(
    "-s",
    "--state",
    multiple=True,
    metavar="STATE",
    help="Only these states (pending, queued, running, failed ...).",
)
@click.option(
    "-l",
    "--label",
    multiple=True,
    metavar="K=V",
    help="Only with this label; may be given more than once.",
)
@click.option(
    "-x", "--expand", is_flag=True, help="The elements of arrays too, those that have begun."
)
@click.option("-u", "--user", metavar="USER", help="Only of this user (default: you).")
@click.option(
    "--kind",
    type=click.Choice(["job", "allocation", "replica"]),
    help="Only what runs a command, is held, or serves a model.",
)
@click.option("--since", metavar="WHEN", help="Submitted since: 10m, 2d, or an RFC 3339 instant.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="At most so many.",
)
@listed
def command(
    everyone: bool,
    state: tuple[str, ...],
    label: tuple[str, ...],
    expand: bool,
    user: str | None,
    kind: str | None,
    since: str | None,
    limit: int,
    form: str,
    no_headers: bool,
) -> None:
    """List jobs.

    \b
    muster ps                       my live jobs
    muster ps --all                 all jobs of all users
    muster ps -s failed --since 1d  what failed since yesterday
    muster ps -o json | jq -r '.[].id'
    """
    profile = read_profile()
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


def read_jobs(profile: Profile, query: dict[str, Any], limit: int) -> list[Job]:
    """The gateway's list, page after page, up to `limit`."""
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


def _print(jobs: list[Job], wide: bool, headers: bool) -> None:
    now = utc_now()
    rows = [(wide_row if wide else row)(job, now) for job in jobs]
    print_table(WIDE_COLUMNS if wide else COLUMNS, rows, headers, wide)


def _since(text: str | None) -> str | None:
    try:
        return instant_option(text, utc_now())
    except ValueError as error:
        raise click.UsageError(f"--since: {error}") from None
