"""`muster up`."""

import os
from pathlib import Path
from typing import Any

import click

from libs.cli.embedded_verbs import DEFAULT_STATE


@click.command(short_help="Start a cluster on this machine.")
@click.option(
    "-N", "--nodes", type=int, metavar="N", help="Number of nodes (default: as last time, else 4)."
)
@click.option(
    "-g",
    "--gpus",
    type=int,
    metavar="N",
    help="Simulated GPUs on each node (default: as last time, else 8).",
)
@click.option("--model", metavar="NAME", help="Model name of the simulated GPUs.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=DEFAULT_STATE,
    show_default=True,
    help="State directory.",
)
@click.option("--host", metavar="ADDRESS", help="Address of the gateway (default: 127.0.0.1).")
@click.option("--port", type=int, metavar="PORT", help="Port of the gateway (default: 8080).")
@click.option(
    "--gateways",
    type=int,
    metavar="N",
    help="Number of gateways, on the port and those after it (default: 1).",
)
@click.option(
    "--schedulers",
    type=int,
    metavar="N",
    help="Number of schedulers. One leads; another takes over (default: 1).",
)
@click.option(
    "--quotas",
    type=int,
    metavar="N",
    help="Number of quota services. One leads; another takes over (default: 1).",
)
@click.option(
    "--audits",
    type=int,
    metavar="N",
    help="Number of audit services. One leads; another takes over (default: 1).",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    help="Listen for other machines on this address, with TLS (default: off).",
)
@click.option(
    "--local",
    is_flag=True,
    default=None,
    help="Use the GPUs of this machine. Adds simulated nodes only with --nodes.",
)
@click.option("--force", is_flag=True, help="Allow a network file system for the log.")
@click.option(
    "--set",
    "chosen",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a setting (repeatable; names in docs/settings.md).",
)
@click.option(
    "-d",
    "--background",
    is_flag=True,
    help="Run in the background; return when the cluster is ready, with an error after 60 s.",
)
def command(state: Path, background: bool, chosen: tuple[str, ...], **shape: Any) -> int:  # noqa: ANN401  the fields of Options
    """Start a cluster on this machine.

    Jobs are real processes; GPUs are simulated unless you give --local. The cluster runs in the
    foreground until Ctrl-C.

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
    """Return the environment variable for KEY=VALUE.

    It overrides all other sources, and the background process inherits it.
    """
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"{text!r}: use KEY=VALUE")
    return f"MUSTER_{name.upper()}", value
