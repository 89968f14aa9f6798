"""`muster support-bundle`."""

import time
from pathlib import Path

import click

from libs.cli.embedded_verbs import state_of


@click.command(short_help="Collect diagnostics for a bug report in one file, without secrets.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write (default: muster-support-TIME.tar.gz in the current directory).",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="State directory (default: ./.muster, else the last cluster started here).",
)
def command(output: Path | None, state: Path | None) -> None:
    """Collect diagnostics for a bug report in one file, without secrets.

    The file holds versions, the configuration, logs of the services, a summary of the cluster and
    of recent facts, and metrics. For jobs, it contains only ids, states and times: no command, no
    environment, no output. Keys, passwords and tokens are hidden. Check it before you send it: tar
    tzf FILE.
    """
    from libs.cli.support import bundle

    path = output or Path(time.strftime("muster-support-%Y%m%d-%H%M%S.tar.gz"))
    print(f"{path}: {bundle(path, state_of(state))} files; check it before you send it")
