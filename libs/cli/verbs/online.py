"""`muster online`."""

import click

from libs.cli.service import devices, set_service


@click.command(short_help="Let work onto nodes or GPUs again.")
@devices
def command(nodes: tuple[str, ...], uuids: tuple[str, ...]) -> int:
    """Let work onto nodes or GPUs again.

    It ends what `muster drain` and `muster offline` said. A device that is unwell takes no work
    before it has recovered.

    \b
    muster online node-3
    muster online --gpu-id GPU-node-3-5
    """
    return set_service("online", nodes, uuids)
