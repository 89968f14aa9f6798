"""`muster offline`."""

import click

from libs.cli.service import devices, set_service


@click.command(short_help="Set idle nodes or GPUs offline.")
@devices
@click.option(
    "--force",
    is_flag=True,
    help=(
        "Stop the jobs that run there: jobs are queued again, replicas are replaced, "
        "allocations end."
    ),
)
def command(nodes: tuple[str, ...], uuids: tuple[str, ...], force: bool) -> int:
    """Set idle nodes or GPUs offline.

    The command is refused while jobs use them, unless you give --force.

    \b
    muster drain node-3                       # first, so that no work is lost
    muster offline node-3
    muster offline --gpu-id GPU-node-3-5 --force
    """
    return set_service("offline", nodes, uuids, force)
