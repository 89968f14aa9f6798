"""`muster watch`."""

import click

from libs.cli.flags.jobflags import DURATION
from libs.cli.terminal.overview import watch


@click.command(short_help="Watch the cluster live, as often as you say.")
@click.option(
    "--interval",
    "every_s",
    type=DURATION,
    default="1s",
    show_default=True,
    help="How long between two looks.",
)
def command(every_s: int) -> None:
    """Watch the cluster live, as often as you say.

    q or Ctrl-C leaves. Without a terminal it prints once.

    \b
    muster watch --interval 5s
    """
    if every_s < 1:
        raise click.UsageError("--interval must be at least 1s")
    watch(every_s)
