"""`muster offline`."""

import click

from libs.cli.service import devices, set_service


@click.command(short_help="Take nodes or GPUs out of service; refused while jobs have them.")
@devices
@click.option(
    "--force",
    is_flag=True,
    help=(
        "End what runs there: jobs wait for their next attempt, replicas are replaced, "
        "allocations end."
    ),
)
def command(nodes: tuple[str, ...], uuids: tuple[str, ...], force: bool) -> int:
    """Take nodes or GPUs out of service; refused while jobs have them.

    \b
    muster drain node-3                       first, so that nothing is lost
    muster offline node-3
    muster offline --gpu-id GPU-node-3-5 --force
    """
    return set_service("offline", nodes, uuids, force)
