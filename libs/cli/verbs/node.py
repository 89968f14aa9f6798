"""`muster node`: what an operator says about a node."""

from urllib.parse import quote

import click

from libs.cli.gateway import ask
from libs.cli.profile import read_profile


@click.group(short_help="Say that a lost node is dead.")
def command() -> None:
    """Say that a lost node is dead."""


@command.command()
@click.argument("node_id", metavar="NODE")
def dead(node_id: str) -> None:
    """Declare dead a node that the scheduler holds for lost.

    Jobs with --on-control-loss continue may live on a lost node, so they are started nowhere else. Say this when you know
    that nothing of them is running there any more (the machine is off): they are then lost there, and queued again.

    \b
    muster nodes                 NODE is unreachable
    muster node dead NODE
    """
    profile = read_profile()
    ask(profile, "POST", f"/v1/nodes/{quote(node_id, safe='')}/dead", body={"user": profile.user})
