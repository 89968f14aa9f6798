"""`muster scale`."""

import click

from libs.cli.gateway import ask, model_path
from libs.cli.profile import read_profile


@click.command(short_help="Change how many replicas a model has.")
@click.argument("name")
@click.argument("replicas", type=click.IntRange(0), metavar="N")
def command(name: str, replicas: int) -> None:
    """Change how many replicas a model has.

    \b
    muster scale chat 4
    muster scale chat 0      # keeps the deployment, frees its GPUs
    """
    profile = read_profile()
    ask(profile, "PATCH", model_path(name), body={"replicas": replicas, "user": profile.user})
