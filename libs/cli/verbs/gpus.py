"""`muster gpus`."""

import click

from libs.cli.gateway import ask_all
from libs.cli.terminal.gpus import print_gpus
from libs.cli.terminal.output import listed, print_value
from libs.client.profile import read_profile


@click.command(short_help="List GPUs and the jobs that hold them.")
@click.option("--node", metavar="NODE", help="Show only GPUs of this node.")
@listed
def command(node: str | None, form: str, no_headers: bool) -> None:
    """List GPUs and the jobs that hold them.

    \b
    muster gpus
    muster gpus --node node-3 -o wide
    """
    gpus = ask_all(read_profile(), "/v1/gpus", "gpus", {"node": node})
    if not print_value(gpus, form):
        print_gpus(gpus, form == "wide", no_headers)
