"""`muster release`."""

import click

from libs.cli.gateway import ask, job_path
from libs.cli.many import each_of
from libs.client.profile import read_profile


@click.command(short_help="Release held jobs, or end allocations.")
@click.argument("refs", nargs=-1, required=True, metavar="JOB...")
def command(refs: tuple[str, ...]) -> int:
    """Release held jobs, or end allocations.

    A held job waits in its queue again. Only an operator can release what an operator held. An
    allocation (muster alloc) ends, and its GPUs become free.

    \b
    muster release train
    """
    profile = read_profile()

    def release(ref: str) -> None:
        ask(profile, "POST", job_path(ref, "release"), body={"user": profile.user})

    return each_of(refs, release)
