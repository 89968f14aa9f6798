"""`muster upload ls` and `muster upload rm`."""

import re
import tempfile
from pathlib import Path
from typing import Final

import click

from libs.cli.flags.sizes import show_size
from libs.cli.gateway import ask, ask_all
from libs.cli.terminal.output import listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile

SHA256: Final = re.compile(r"[0-9a-f]{64}")


COLUMNS: Final = (Column("SHA256"), Column("SIZE", right=True), Column("SENT"))


@click.group(short_help="List and remove uploads of directories.")
def command() -> None:
    """List and remove uploads of directories.

    \b
    muster run --upload ./experiment -- python train.py
    muster upload ls
    muster upload rm ./experiment
    """


@command.command("ls")
@listed
def list_uploads(form: str, no_headers: bool) -> None:
    """List the uploads of your tenant, the newest first."""
    found = ask_all(read_profile(), "/v1/uploads", "uploads")
    found.sort(key=lambda upload: str(upload["sent_at"]), reverse=True)
    if not print_value(found, form):
        rows = [[each["sha256"], show_size(each["size_bytes"]), each["sent_at"]] for each in found]
        print_table(COLUMNS, rows, not no_headers, form == "wide")


@command.command("rm")
@click.argument("upload")
def remove_upload(upload: str) -> None:
    """Remove an upload of your tenant.

    UPLOAD is the directory as it was sent, or the SHA-256 that muster describe shows for a job. An
    upload that an active job or a deployed model uses is not removed.
    """
    sha256 = upload if SHA256.fullmatch(upload) else _sha256_of(Path(upload))
    removed = ask(read_profile(), "DELETE", f"/v1/uploads/{sha256}")
    print(f"upload {sha256} ({show_size(removed['size_bytes'])}) is removed")


def _sha256_of(directory: Path) -> str:
    """Return the SHA-256 of a directory's archive. Raises UsageError and Refused."""
    from libs.cli.formats.packing import pack
    from libs.common.settings import configuration
    from libs.common.transport.uploads import Bounds

    if not directory.is_dir():
        raise click.UsageError(
            f"{str(directory)!r} is neither a directory nor a SHA-256: give the directory that was "
            "uploaded, or the SHA-256 that `muster describe JOB` shows"
        )
    bounds = configuration.resolve().settings
    with tempfile.TemporaryFile() as archive:
        return pack(directory, archive, Bounds(bounds.upload_bytes, bounds.upload_files)).sha256
