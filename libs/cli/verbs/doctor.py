"""`muster doctor`."""

from pathlib import Path
from typing import Final

import click

from libs.cli.embedded_verbs import DEFAULT_STATE
from libs.cli.profile import read_profile
from libs.cli.terminal.output import listed, print_table, print_value
from libs.cli.terminal.table import Column

COLUMNS: Final = (
    Column("CHECK"),
    Column("STATE"),
    Column("FOUND", flexible=True),
    Column("FIX", flexible=True),
)
PORTS: Final = (8080,)


@click.command(short_help="Check whether this machine is fit to be a node or to hold the log.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=DEFAULT_STATE,
    show_default=True,
    help="Where the state would be.",
)
@click.option(
    "--port",
    "ports",
    type=int,
    multiple=True,
    metavar="PORT",
    help="Ports that should be free (default 8080).",
)
@listed
def command(state: Path, ports: tuple[int, ...], form: str, no_headers: bool) -> int:
    """Check whether this machine is fit to be a node or to hold the log.

    Nothing is changed. Exit code 1 when something that is needed is not as it must be.

    \b
    muster doctor
    muster doctor --state /data/muster -o json
    """
    from libs.doctor import OK, SLOW
    from libs.doctor.checks import examine

    found = examine(state.resolve(), read_profile().url, ports or PORTS)
    rows = [
        {"check": each.what, "state": each.state, "found": each.found, "fix": each.fix}
        for each in found
    ]
    if not print_value(rows, form):
        print_table(COLUMNS, [list(row.values()) for row in rows], not no_headers, form == "wide")
    return int(any(each.needed and each.state not in (OK, SLOW) for each in found))
