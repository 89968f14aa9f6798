"""`muster unreserve`."""

from urllib.parse import quote

import click

from libs.cli.gateway import ask
from libs.cli.many import each_of
from libs.cli.profile import read_profile


@click.command(short_help="End reservations and maintenances.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def command(names: tuple[str, ...]) -> int:
    """End reservations and maintenances.

    They end whether they have begun or not: the nodes are anybody's again.
    """
    profile = read_profile()

    def clear(name: str) -> None:
        ask(profile, "DELETE", f"/v1/reservations/{quote(name, safe='')}")

    return each_of(names, clear)
