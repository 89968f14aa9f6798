"""`muster down`."""

from pathlib import Path

import click

from libs.cli.embedded_verbs import state_of


@click.command(short_help="Stop the cluster that muster up started.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="State directory (default: ./.muster, else the last cluster started here).",
)
def command(state: Path | None) -> int:
    """Stop the cluster that muster up started.

    The state is kept, and the next muster up continues from it.
    """
    from libs.embedded.commands import down
    from libs.embedded.shape import Options

    return down(Options(state=state_of(state)))
