"""`muster clean`."""

from pathlib import Path

import click

from libs.cli.embedded_verbs import state_of


@click.command(short_help="Remove the state of a stopped cluster.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="State directory (default: ./.muster, else the last cluster started here).",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def command(state: Path | None, yes: bool) -> int:
    """Remove the state of a stopped cluster.

    This deletes the log, the archive and the keys. The command asks for confirmation first.
    """
    from libs.embedded.commands import clean
    from libs.embedded.shape import Options

    return clean(Options(state=state_of(state), yes=yes))
