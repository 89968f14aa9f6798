"""`muster hold`."""

import click

from libs.cli.gateway import ask, job_path
from libs.cli.many import each_of
from libs.client.profile import read_profile


@click.command(short_help="Hold queued jobs until they are released.")
@click.argument("refs", nargs=-1, required=True, metavar="JOB...")
def command(refs: tuple[str, ...]) -> int:
    """Hold queued jobs until they are released.

    A running attempt continues. The hold takes effect if the job returns to the queue.

    \b
    muster hold train
    """
    profile = read_profile()

    def hold(ref: str) -> None:
        ask(profile, "POST", job_path(ref, "hold"), body={"user": profile.user})

    return each_of(refs, hold)
