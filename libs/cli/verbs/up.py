"""`muster up`."""

from pathlib import Path
from typing import Any

import click

from libs.cli.embedded_verbs import DEFAULT_STATE


@click.command(short_help="Start a cluster on this machine.")
@click.option("-N", "--nodes", type=int, metavar="N", help="Nodes (default: as last time, else 4).")
@click.option("-g", "--gpus", type=int, metavar="N", help="Simulated GPUs on each node (default: as last time, else 8).")
@click.option("--model", metavar="NAME", help="What the simulated GPUs are called.")
@click.option("--state", type=click.Path(path_type=Path), default=DEFAULT_STATE, show_default=True, help="Where everything is kept.")
@click.option("--host", metavar="ADDRESS", help="Where the gateway listens (default 127.0.0.1).")
@click.option("--port", type=int, metavar="PORT", help="Its port (default 8080).")
@click.option("-d", "--background", is_flag=True, help="Return when it is ready.")
def command(state: Path, background: bool, **shape: Any) -> int:  # noqa: ANN401  the fields of Options
    """Start a cluster on this machine.

    Jobs are real processes; GPUs are simulated. Stays in the foreground until Ctrl-C.

    \b
    muster up
    muster up --nodes 16 --gpus 8
    muster up -d && muster run -- nvidia-smi
    """
    from libs.embedded.commands import up
    from libs.embedded.shape import Options

    return up(Options(state=state, foreground=not background, **shape))
