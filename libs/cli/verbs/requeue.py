"""`muster requeue`."""

import click

from libs.cli.gateway import ask, job_path
from libs.cli.many import each_of
from libs.cli.profile import read_profile


@click.command(short_help="End the running attempt of jobs and let them wait for the next one.")
@click.argument("refs", nargs=-1, required=True, metavar="JOB...")
def command(refs: tuple[str, ...]) -> int:
    """End the running attempt of jobs and let them wait for the next one.

    It uses up none of their retries.

    \b
    muster requeue train
    """
    profile = read_profile()

    def requeue(ref: str) -> None:
        ask(profile, "POST", job_path(ref, "requeue"), body={"user": profile.user})

    return each_of(refs, requeue)
