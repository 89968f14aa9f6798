"""`muster unreserve`."""

from urllib.parse import quote

import click

from libs.cli.gateway import ask
from libs.cli.many import each_of
from libs.client.profile import read_profile


@click.command(short_help="End reservations and maintenance windows.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def command(names: tuple[str, ...]) -> int:
    """End reservations and maintenance windows.

    A current or future one ends at once. All jobs may then use its nodes again.
    """
    profile = read_profile()

    def clear(name: str) -> None:
        ask(profile, "DELETE", f"/v1/reservations/{quote(name, safe='')}")

    return each_of(names, clear)
