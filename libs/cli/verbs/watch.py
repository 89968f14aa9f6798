"""`muster watch`."""

import click

from libs.cli.flags.durations import DURATION
from libs.cli.terminal.overview import watch


@click.command(short_help="Show a live view of the cluster at a chosen interval.")
@click.option(
    "--interval",
    "every_s",
    type=DURATION,
    default="1s",
    show_default=True,
    help="Time between two updates.",
)
def command(every_s: int) -> None:
    """Show a live view of the cluster at a chosen interval.

    q or Ctrl-C exits. Without a terminal the view is printed once.

    \b
    muster watch --interval 5s
    """
    if every_s < 1:
        raise click.UsageError("--interval must be at least 1s")
    watch(every_s)
