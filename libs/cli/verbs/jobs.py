"""`muster jobs list|describe|cancel|kill`: the same as ps, describe, cancel and kill."""

import click

from libs.cli.verbs import cancel, describe, kill, ps


@click.group(short_help="List, describe, cancel or kill jobs.")
def command() -> None:
    """List, describe, cancel or kill jobs.

    The same as muster ps, describe, cancel and kill.
    """


command.add_command(ps.command, "list")
command.add_command(describe.command, "describe")
command.add_command(cancel.command, "cancel")
command.add_command(kill.command, "kill")
