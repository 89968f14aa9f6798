"""`muster support-bundle`."""

import time
from pathlib import Path

import click

from libs.cli.embedded_verbs import state_of


@click.command(short_help="Collect what a report of a fault needs into one file, without secrets.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where (default: muster-support-TIME.tar.gz here).",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="The state directory (default: ./.muster, else the last one started).",
)
def command(output: Path | None, state: Path | None) -> None:
    """Collect what a report of a fault needs into one file, without secrets.

    Versions, configuration, the services' logs, a summary of the cluster and of the last facts,
    metrics. Of jobs only ids and states are taken: no command, no environment, no output. Keys,
    passwords and tokens are hidden. Look into it before you send it: tar tzf FILE.
    """
    from libs.cli.support import bundle

    path = output or Path(time.strftime("muster-support-%Y%m%d-%H%M%S.tar.gz"))
    print(f"{path}: {bundle(path, state_of(state))} files; look into it before you send it")
