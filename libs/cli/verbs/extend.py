"""`muster extend`."""

import click

from libs.cli.flags.durations import DURATION
from libs.cli.gateway import allocation_path, ask
from libs.cli.many import each_of
from libs.cli.verbs.alloc import until_line
from libs.client.profile import read_profile


@click.command(short_help="Extend allocations.")
@click.argument("refs", nargs=-1, required=True, metavar="JOB...")
@click.option(
    "--by",
    "by_s",
    type=DURATION,
    required=True,
    help="Time to add, for example 90s, 1h30m or 1-12:00:00.",
)
def command(refs: tuple[str, ...], by_s: int) -> int:
    """Extend allocations.

    \b
    muster extend j4f2a5lc6kq --by 1h
    """
    profile = read_profile()

    def extend(ref: str) -> None:
        shown = ask(profile, "PATCH", allocation_path(ref), body={"by": by_s, "user": profile.user})
        print(f"{shown['id']} {until_line(shown)}")

    return each_of(refs, extend)
