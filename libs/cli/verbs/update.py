"""`muster update`."""

import click

from libs.cli.flags.durations import DURATION
from libs.cli.gateway import ask, job_path
from libs.cli.many import each_of
from libs.client.profile import read_profile


@click.command(short_help="Change the priority or the time limit of jobs.")
@click.argument("refs", nargs=-1, required=True, metavar="JOB...")
@click.option("-p", "--priority", type=int, metavar="N", help="New priority, 0 to 100.")
@click.option(
    "-t",
    "--time",
    "time_limit_s",
    type=DURATION,
    help="New maximum run time of a job that has not started, for example 90s or 1h30m.",
)
def command(refs: tuple[str, ...], priority: int | None, time_limit_s: int | None) -> int:
    """Change the priority or the time limit of jobs.

    \b
    muster update --priority 90 train
    muster update --time 4h train
    """
    profile = read_profile()
    wanted = {"priority": priority, "time_limit_s": time_limit_s, "user": profile.user}
    body = {name: value for name, value in wanted.items() if value is not None}

    def update(ref: str) -> None:
        ask(profile, "PATCH", job_path(ref), body=body)

    return each_of(refs, update)
