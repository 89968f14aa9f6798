"""`muster top`."""

from typing import Final

import click

from libs.cli.terminal.overview import watch

EVERY_S: Final = 1.0


@click.command(short_help="Watch the cluster live.")
def command() -> None:
    """Watch the cluster live.

    Drawn again each second; q or Ctrl-C leaves. Without a terminal it prints once.
    """
    watch(EVERY_S)
