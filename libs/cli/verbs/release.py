"""`muster release`."""

import click

from libs.cli.gateway import ask, job_path
from libs.cli.many import each_of
from libs.cli.profile import read_profile


@click.command(short_help="Let held jobs be placed, and give allocations back.")
@click.argument("refs", nargs=-1, required=True, metavar="JOB...")
def command(refs: tuple[str, ...]) -> int:
    """Let held jobs be placed, and give allocations back.

    A job on hold waits in line again; what an operator holds only an operator releases. An
    allocation (muster alloc), which is never on hold, ends: its devices are free.

    \b
    muster release train
    """
    profile = read_profile()

    def release(ref: str) -> None:
        ask(profile, "POST", job_path(ref, "release"), body={"user": profile.user})

    return each_of(refs, release)
