"""`muster undeploy`."""

import click

from libs.cli.gateway import ask, model_path
from libs.cli.many import each_of
from libs.client.profile import read_profile


@click.command(short_help="Stop serving a model.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def command(names: tuple[str, ...]) -> int:
    """Stop serving a model.

    The replicas stop. The model's history is kept.

    \b
    muster undeploy chat
    """
    profile = read_profile()

    def undeploy(name: str) -> None:
        ask(profile, "DELETE", model_path(name), body={"user": profile.user})

    return each_of(names, undeploy)
