"""`muster drain`."""

import click

from libs.cli.service import devices, set_service


@click.command(short_help="Start no new jobs on nodes or GPUs; running jobs continue.")
@devices
def command(nodes: tuple[str, ...], uuids: tuple[str, ...]) -> int:
    """Start no new jobs on nodes or GPUs; running jobs continue.

    The command prints the jobs that still run there; repeat it to see which are left. A drained
    node still takes jobs without GPUs; use muster maintenance to keep them off too. To undo, use
    muster online.

    \b
    muster drain node-3
    muster drain --gpu-id GPU-node-3-5
    """
    return set_service("draining", nodes, uuids)
