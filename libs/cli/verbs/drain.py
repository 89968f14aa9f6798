"""`muster drain`."""

import click

from libs.cli.service import devices, set_service


@click.command(short_help="Let no new work onto nodes or GPUs; what runs there goes on.")
@devices
def command(nodes: tuple[str, ...], uuids: tuple[str, ...]) -> int:
    """Let no new work onto nodes or GPUs; what runs there goes on.

    What still runs there is printed; say it again to see what is left. Jobs without GPUs may still
    come to such a node: `muster maintenance` keeps them off. `muster online` ends it.

    \b
    muster drain node-3
    muster drain --gpu-id GPU-node-3-5
    """
    return set_service("draining", nodes, uuids)
