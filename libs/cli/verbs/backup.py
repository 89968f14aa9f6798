"""`muster backup`: copy the cluster of this machine to another place, encrypted."""

from pathlib import Path

import click

from libs.cli import archive_process
from libs.cli.embedded_verbs import state_of

KEY_FILE = "MUSTER_BACKUP_KEY_FILE"


@click.command(short_help="Back up the cluster of this machine, encrypted.")
@click.argument("place", required=False, default="")
@click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    envvar=KEY_FILE,
    help=f"File with the key that encrypts the backup (default: ${KEY_FILE}).",
)
@click.option(
    "--new-key", type=click.Path(path_type=Path), metavar="FILE", help="Create a key file."
)
@click.option("--check", is_flag=True, help="Read and verify the whole backup; write nothing.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="State directory (default: ./.muster, else the last cluster started here).",
)
def command(
    place: str, key_file: Path | None, new_key: Path | None, check: bool, state: Path | None
) -> int:
    """Back up the cluster of this machine, encrypted.

    The cluster may run meanwhile. PLACE is a directory or s3://bucket/prefix. The first backup
    copies everything, later ones only what is new. The backup is consistent at one commit of the
    log, and is read back before it counts. The last backup stays whole if the command is killed.

    \b
    muster backup --new-key ~/backup.key        # once; keep a copy elsewhere
    muster backup /mnt/backup --key-file ~/backup.key
    muster backup s3://company-backup/muster --key-file ~/backup.key
    """
    if new_key is not None:
        return archive_process.run({}, "backup-key", str(new_key.absolute()))
    if not place or key_file is None:
        raise click.UsageError(
            "PLACE and --key-file are needed: muster backup /mnt/backup --key-file FILE "
            "(muster backup --new-key FILE creates a key)"
        )
    where = place if "://" in place else str(Path(place).absolute())
    if check:
        return archive_process.run({}, "check-backup", where, key_file=str(key_file.absolute()))
    found = state_of(state).absolute()
    return archive_process.run(
        archive_process.of_backup(found),
        "backup",
        where,
        key_file=str(key_file.absolute()),
        state=str(found),
    )
