"""`muster requeue`."""

import click

from libs.cli.gateway import ask, job_path
from libs.cli.many import each_of
from libs.client.profile import read_profile


@click.command(short_help="Stop the running attempt of jobs and queue them again.")
@click.argument("refs", nargs=-1, required=True, metavar="JOB...")
def command(refs: tuple[str, ...]) -> int:
    """Stop the running attempt of jobs and queue them again.

    This does not count as a retry.

    \b
    muster requeue train
    """
    profile = read_profile()

    def requeue(ref: str) -> None:
        ask(profile, "POST", job_path(ref, "requeue"), body={"user": profile.user})

    return each_of(refs, requeue)
