"""`muster scale`."""

import click

from libs.cli.gateway import ask, model_path
from libs.client.profile import read_profile


@click.command(short_help="Set the number of replicas of a model.")
@click.argument("name")
@click.argument("replicas", type=click.IntRange(0), metavar="N")
def command(name: str, replicas: int) -> None:
    """Set the number of replicas of a model.

    \b
    muster scale chat 4
    muster scale chat 0      # keep the deployment, free its GPUs

    The scheduler scales models that were deployed with bounds (--replicas 0..8). For these the
    command is refused: change the bounds with muster redeploy.
    """
    profile = read_profile()
    ask(profile, "PATCH", model_path(name), body={"replicas": replicas, "user": profile.user})
