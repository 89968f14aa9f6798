"""`muster doctor`."""

from pathlib import Path
from typing import Final

import click

from libs.cli.embedded_verbs import DEFAULT_STATE
from libs.cli.terminal.output import listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile

COLUMNS: Final = (
    Column("CHECK"),
    Column("STATE"),
    Column("FOUND", flexible=True),
    Column("FIX", flexible=True),
)
PORTS: Final = (8080,)


@click.command(short_help="Check that this machine can be a node or hold the log.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=DEFAULT_STATE,
    show_default=True,
    help="State directory to check.",
)
@click.option(
    "--port",
    "ports",
    type=int,
    multiple=True,
    metavar="PORT",
    help="Check that this port is free (repeatable; default: 8080).",
)
@listed
def command(state: Path, ports: tuple[int, ...], form: str, no_headers: bool) -> int:
    """Check that this machine can be a node or hold the log.

    The command changes nothing. Exit code: 0 if all required checks pass, else 1.

    \b
    muster doctor
    muster doctor --state /data/muster -o json
    """
    from libs.doctor import OK, SLOW
    from libs.doctor.checks import examine

    results = examine(state.resolve(), read_profile().url, ports or PORTS)
    rows = [
        {"check": each.what, "state": each.state, "found": each.found, "fix": each.fix}
        for each in results
    ]
    if not print_value(rows, form):
        print_table(COLUMNS, [list(row.values()) for row in rows], not no_headers, form == "wide")
    return int(any(each.needed and each.state not in (OK, SLOW) for each in results))
