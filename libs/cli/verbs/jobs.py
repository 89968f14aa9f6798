"""`muster jobs`: what is done with jobs, under the names of `gpu-platform jobs`."""

import click

from libs.cli.verbs import cancel, describe, kill, ps


@click.group(
    short_help="List, describe, cancel and kill jobs: ps, describe, cancel and kill by other names."
)
def command() -> None:
    """List, describe, cancel and kill jobs: ps, describe, cancel and kill by other names."""


command.add_command(ps.command, "list")
command.add_command(describe.command, "describe")
command.add_command(cancel.command, "cancel")
command.add_command(kill.command, "kill")
