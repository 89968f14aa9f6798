"""`muster down`."""

from pathlib import Path

import click

from libs.cli.embedded_verbs import state_of


@click.command(short_help="Stop the cluster that `muster up` started.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="Its state directory (default: ./.muster, else the last one started).",
)
def command(state: Path | None) -> int:
    """Stop the cluster that `muster up` started.

    What it knows is kept; `muster up` goes on from there.
    """
    from libs.embedded.commands import down
    from libs.embedded.shape import Options

    return down(Options(state=state_of(state)))
