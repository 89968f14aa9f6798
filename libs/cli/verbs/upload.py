"""`muster upload rm`."""

import re
import tempfile
from pathlib import Path
from typing import Final

import click

from libs.cli.flags.sizes import show_size
from libs.cli.gateway import ask
from libs.client.profile import read_profile

SHA256: Final = re.compile(r"[0-9a-f]{64}")


@click.group(short_help="Remove uploads of directories.")
def command() -> None:
    """Remove uploads of directories.

    \b
    muster run --upload ./experiment -- python train.py
    muster upload rm ./experiment
    """


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
