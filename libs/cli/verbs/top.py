"""`muster top`."""

from typing import Final

import click

from libs.cli.terminal.overview import watch

EVERY_S: Final = 1.0


@click.command(short_help="Show a live view of the cluster.")
def command() -> None:
    """Show a live view of the cluster.

    The screen is redrawn every second; q or Ctrl-C exits. Without a terminal it is printed once.
    """
    watch(EVERY_S)
