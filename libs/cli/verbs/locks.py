"""`muster locks`."""

from typing import Final

import click

from libs.cli.gateway import Json, ask_all
from libs.cli.terminal.output import listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile

COLUMNS: Final = (
    Column("NAME"),
    Column("TENANT"),
    Column("USER"),
    Column("TOKEN"),
    Column("SINCE"),
    Column("EXPIRES"),
    Column("WAITING"),
)


@click.command(short_help="List locks, their holders and how many wait.")
@listed
def command(form: str, no_headers: bool) -> None:
    """List locks, their holders and how many wait.

    A lock without a claim is free and is not listed. Operators see the locks of all tenants.
    """
    found = ask_all(read_profile(), "/v1/locks", "locks")
    if not print_value(found, form):
        print_table(COLUMNS, [_row(each) for each in found], not no_headers, form == "wide")


def _row(lock: Json) -> list[str]:
    holder = next((each for each in lock["claims"] if each["holder"] == lock["holder"]), None)
    since, expires = (holder["held_at"], holder["expires_at"]) if holder else ("-", "-")
    return [
        lock["name"],
        lock["tenant"],
        lock["user"] or "-",
        str(lock["token"] or "-"),
        since,
        expires,
        str(lock["waiting"]),
    ]
