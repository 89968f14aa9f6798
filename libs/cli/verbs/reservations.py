"""`muster reservations`."""

from typing import Final

import click

from libs.cli.gateway import Json, ask_all
from libs.cli.terminal.output import listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile

COLUMNS: Final = (Column("NAME"), Column("FROM"), Column("TO"), Column("FOR"), Column("NODES"))


@click.command(short_help="List reservations and maintenance windows.")
@listed
def command(form: str, no_headers: bool) -> None:
    """List reservations and maintenance windows.

    The list holds current and future ones, by start time.
    """
    reservations = ask_all(read_profile(), "/v1/reservations", "reservations")
    if not print_value(reservations, form):
        print_table(COLUMNS, [_row(each) for each in reservations], not no_headers, form == "wide")


def _row(kept: Json) -> list[str]:
    whose = ",".join((*kept["tenants"], *kept["users"])) or "none (maintenance)"
    return [kept["name"], kept["start"], kept["end"], whose, ",".join(kept["nodes"])]
