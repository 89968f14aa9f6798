"""`muster status`."""

import click

from libs.cli.terminal.gpus import print_gpus
from libs.cli.terminal.output import formatted, print_value
from libs.cli.terminal.overview import read, show
from libs.client.profile import read_profile


@click.command(short_help="Show a summary of the cluster, its nodes and its jobs.")
@click.option("--all", "everything", is_flag=True, help="Also list every GPU.")
@formatted
def command(everything: bool, form: str) -> None:
    """Show a summary of the cluster, its nodes and its jobs.

    \b
    muster status
    muster status --all
    """
    seen = read(read_profile())
    if print_value(seen, form):
        return
    show(seen)
    if everything:
        print()
        print_gpus(seen["gpus"], form == "wide", no_headers=False)
