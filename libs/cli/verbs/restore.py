"""`muster restore`: build the state directory of a cluster from a backup."""

from pathlib import Path

import click

from libs.cli import archive_process
from libs.cli.embedded_verbs import DEFAULT_STATE
from libs.cli.verbs.backup import KEY_FILE


@click.command(short_help="Restore a backup to a new state directory.")
@click.argument("place")
@click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    envvar=KEY_FILE,
    required=True,
    help=f"File with the key of the backup (default: ${KEY_FILE}).",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=DEFAULT_STATE,
    show_default=True,
    help="State directory to create. It must be empty or missing.",
)
@click.option(
    "--leases-ended",
    is_flag=True,
    help=(
        "Confirm that no node holds the long lease of a planned stop: the old cluster was not "
        "stopped by muster down, Ctrl-C, SIGTERM or systemd in the last 10 minutes."
    ),
)
def command(place: str, key_file: Path, state: Path, leases_ended: bool) -> int:
    """Restore a backup to a new state directory.

    The command verifies the whole backup before it writes anything. Make sure that the old cluster
    does not run any more. After the start, nodes that had joined register again; their running jobs
    are kept if the backup knows them, and stopped otherwise. Jobs of nodes that do not come back
    are queued again when the leases have ended. No job starts in the first 10 minutes, unless
    --leases-ended is given. MUSTER_AUDIT_URL names the database of the archive, as for muster up.

    \b
    muster restore /mnt/backup --key-file ~/backup.key --state ~/restored
    muster up --state ~/restored
    """
    flags = ["--leases-ended"] if leases_ended else []
    where = place if "://" in place else str(Path(place).absolute())
    return archive_process.run(
        {},
        "restore",
        where,
        *flags,
        key_file=str(key_file.absolute()),
        state=str(state.absolute()),
    )
