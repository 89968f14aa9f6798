"""`muster jobs list|describe|cancel|kill`: the names that `gpu-platform jobs` uses."""

import click

from libs.cli.verbs import cancel, describe, kill, ps


@click.group(short_help="List, describe, cancel or kill jobs.")
def command() -> None:
    """List, describe, cancel or kill jobs.

    The same as muster ps, describe, cancel and kill. Users of gpu-platform know these names.
    """


command.add_command(ps.command, "list")
command.add_command(describe.command, "describe")
command.add_command(cancel.command, "cancel")
command.add_command(kill.command, "kill")
