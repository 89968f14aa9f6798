"""`muster up`."""

import os
from pathlib import Path
from typing import Any

import click

from libs.cli.embedded_verbs import DEFAULT_STATE


@click.command(short_help="Start a cluster on this machine.")
@click.option("-N", "--nodes", type=int, metavar="N", help="Nodes (default: as last time, else 4).")
@click.option(
    "-g",
    "--gpus",
    type=int,
    metavar="N",
    help="Simulated GPUs on each node (default: as last time, else 8).",
)
@click.option("--model", metavar="NAME", help="What the simulated GPUs are called.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=DEFAULT_STATE,
    show_default=True,
    help="Where everything is kept.",
)
@click.option("--host", metavar="ADDRESS", help="Where the gateway listens (default 127.0.0.1).")
@click.option("--port", type=int, metavar="PORT", help="Its port (default 8080).")
@click.option(
    "--gateways",
    type=int,
    metavar="N",
    help="Gateways, on the port and those after it (default 1).",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    help="Listen to other machines too, with TLS, on this address (default: to none).",
)
@click.option(
    "--local",
    is_flag=True,
    default=None,
    help="Add this machine's own GPUs, and no simulated nodes unless --nodes says so.",
)
@click.option("--force", is_flag=True, help="Keep the log even on a network file system.")
@click.option(
    "--set",
    "chosen",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting, before every other source (docs/settings.md).",
)
@click.option("-d", "--background", is_flag=True, help="Return when it is ready.")
def command(state: Path, background: bool, chosen: tuple[str, ...], **shape: Any) -> int:  # noqa: ANN401  the fields of Options
    """Start a cluster on this machine.

    Jobs are real processes; GPUs are simulated. Stays in the foreground until Ctrl-C.

    \b
    muster up
    muster up --nodes 16 --gpus 8
    muster up -d && muster run -- nvidia-smi
    muster up --set log_level=DEBUG
    """
    os.environ.update(_variable(each) for each in chosen)
    from libs.embedded.commands import up
    from libs.embedded.shape import Options

    return up(Options(state=state, foreground=not background, **shape))


def _variable(text: str) -> tuple[str, str]:
    """The environment variable that the flag stands for: it goes before all others, and the
    background process has it too.
    """
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return f"MUSTER_{name.upper()}", value
