"""`muster cp`: copy a file or folder from a job to this machine."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

import click

from libs.cli.gateway import Stream, job_path, opened
from libs.cli.profile import read_profile
from libs.cli.terminal.output import complain
from libs.common.errors import Refused

# The gateway's content type for a folder, and its header with the mode of a file.
TAR: Final = "application/x-tar"
MODE_HEADER: Final = "x-muster-mode"
FILES_MAX: Final = 10_000_000


@click.command(short_help="Copy a file or folder from a job to this machine.")
@click.argument("source", metavar="JOB:PATH")
@click.argument("target", metavar="[LOCAL]", default=".")
@click.option(
    "--node", metavar="NODE", help="Copy from this node of a multi-node job (default: the first)."
)
@click.option(
    "--attempt",
    type=click.IntRange(1),
    metavar="N",
    help="Copy from this earlier attempt (default: the current one).",
)
def command(source: str, target: str, node: str | None, attempt: int | None) -> None:
    """Copy a file or folder from a job to this machine.

    PATH is relative to the job's working directory. You can copy while the job runs, and afterwards
    as long as its node keeps the directory.

    LOCAL is a directory to copy into, or the new name. If LOCAL is -, the command writes the file,
    or a tar archive of the folder, to standard output.

    \b
    muster cp train:checkpoints/last.pt .
    muster cp train:checkpoints ./results
    muster cp train:metrics.json - | jq .loss
    muster cp --node node-2 train: - | tar tf -
    """
    ref, colon, path = source.partition(":")
    if not colon or not ref:
        raise click.UsageError(
            f"{source!r} names no job: use JOB:PATH, for example train:{source}. To send files to "
            "a job, use muster submit --upload"
        )
    query = {"path": path, "node_id": node, "attempt": attempt}
    with opened(read_profile(), job_path(ref, "files"), query) as answer:
        name = (
            os.path.basename(os.path.normpath(path)) if path.strip("/.") else ref.replace("/", "-")
        )
        if target == "-":
            _print(answer)
        elif answer.headers.get_content_type() == TAR:
            _folder(answer, _place(target, name))
        else:
            _file(answer, _place(target, name))


def _place(target: str, name: str) -> Path:
    """Return the path to write, with the rules of `cp` for its last argument."""
    path = Path(target)
    return path / name if path.is_dir() or target.endswith("/") else path


def _print(answer: Stream) -> None:
    for piece in answer.pieces():
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def _file(answer: Stream, place: Path) -> None:
    """Write a file to a temporary name, and rename it when it is complete."""
    if place.is_dir():
        raise Refused(f"{place} is a folder: choose another name")
    descriptor, part = tempfile.mkstemp(prefix=f".{place.name}.", suffix=".part", dir=place.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in answer.pieces():
                file.write(piece)
            os.fchmod(
                file.fileno(), int(answer.headers.get(MODE_HEADER) or "644", 8) & 0o777 & ~_umask()
            )
        os.replace(part, place)
    finally:
        Path(part).unlink(missing_ok=True)


def _folder(answer: Stream, place: Path) -> None:
    """Unpack a folder under a temporary name, and rename it when it is complete.

    Raises Refused if `place` exists.
    """
    from libs.common.safety.unpacking import unpack

    if place.exists():
        raise Refused(f"{place} exists already: remove it, or choose another name")
    part = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".part", dir=place.parent))
    try:
        unpack(
            cast(BinaryIO, _Pipe(answer.pieces())),
            part / "it",
            FILES_MAX,
            stream=True,
            leave_out=_note_skipped,
        )
        os.chmod(part / "it", 0o777 & ~_umask())
        os.rename(part / "it", place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _note_skipped(name: str) -> None:
    complain(f"skipped the link {name}: it points outside the copied folder")


def _umask() -> int:
    """Return the process's umask. The system can only read it by setting it."""
    was = os.umask(0o077)
    os.umask(was)
    return was


class _Pipe:
    """An open answer as a file object for sequential reads."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces, self.rest = pieces, b""

    def read(self, size: int) -> bytes:
        while len(self.rest) < size and (piece := next(self.pieces, b"")):
            self.rest += piece
        data, self.rest = self.rest[:size], self.rest[size:]
        return data
