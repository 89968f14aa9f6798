"""`muster online`."""

import click

from libs.cli.service import devices, set_service


@click.command(short_help="Return nodes or GPUs to service.")
@devices
def command(nodes: tuple[str, ...], uuids: tuple[str, ...]) -> int:
    """Return nodes or GPUs to service.

    This undoes muster drain and muster offline. An unhealthy GPU takes no jobs until it has
    recovered.

    \b
    muster online node-3
    muster online --gpu-id GPU-node-3-5
    """
    return set_service("online", nodes, uuids)
