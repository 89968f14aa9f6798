"""`muster kill`."""

import click

from libs.cli.gateway import ask, job_path
from libs.cli.many import each_of
from libs.client.profile import read_profile


@click.command(short_help="Kill jobs at once.")
@click.argument("refs", nargs=-1, required=True, metavar="JOB...")
def command(refs: tuple[str, ...]) -> int:
    """Kill jobs at once.

    \b
    muster kill train
    muster ps -o json | jq -r '.[].id' | xargs muster kill
    """
    profile = read_profile()

    def kill(ref: str) -> None:
        ask(profile, "POST", job_path(ref, "kill"), body={"user": profile.user})

    return each_of(refs, kill)
