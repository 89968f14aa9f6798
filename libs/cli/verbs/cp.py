"""`muster cp`: a file or a folder of a job, as it is now, to here."""

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

# The gateway answers with this for a folder, and with a file's mode for a file.
TAR: Final = "application/x-tar"
MODE_HEADER: Final = "x-muster-mode"
FILES_MAX: Final = 10_000_000


@click.command(short_help="Copy a file or a folder of a job to here.")
@click.argument("source", metavar="JOB:PATH")
@click.argument("target", metavar="[LOCAL]", default=".")
@click.option(
    "--node", metavar="NODE", help="Whose, of a job on several nodes (default: the first)."
)
@click.option(
    "--attempt",
    type=click.IntRange(1),
    metavar="N",
    help="Of an earlier attempt (default: the current one).",
)
def command(source: str, target: str, node: str | None, attempt: int | None) -> None:
    """Copy a file or a folder of a job to here.

    PATH is seen from the job's working directory. It works while the job runs, and afterwards as
    long as its node keeps its directory. LOCAL is a directory to put it into, or its new name; -
    writes a file's bytes, or a folder as a tar archive, to standard output.

    \b
    muster cp train:checkpoints/last.pt .
    muster cp train:checkpoints ./results
    muster cp train:metrics.json - | jq .loss
    muster cp --node node-2 train: - | tar tf -
    """
    ref, colon, path = source.partition(":")
    if not colon or not ref:
        raise click.UsageError(
            f"{source!r} must be JOB:PATH: files are copied from a job (--upload takes them to one)"
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
    """As `cp` reads its last argument."""
    path = Path(target)
    return path / name if path.is_dir() or target.endswith("/") else path


def _print(answer: Stream) -> None:
    for piece in answer.pieces():
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def _file(answer: Stream, place: Path) -> None:
    """Under its name only when it is whole; what was there under it is replaced then."""
    if place.is_dir():
        raise Refused(f"{place} is a folder: name another place")
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
    """The same; a folder that is there is left alone."""
    from libs.common.safety.unpacking import unpack

    if place.exists():
        raise Refused(f"{place} is there already: remove it, or name another place")
    part = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".part", dir=place.parent))
    try:
        unpack(
            cast(BinaryIO, _Pipe(answer.pieces())),
            part / "it",
            FILES_MAX,
            stream=True,
            leave_out=_left_out,
        )
        os.chmod(part / "it", 0o777 & ~_umask())
        os.rename(part / "it", place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _left_out(name: str) -> None:
    complain(f"the link {name} leads out of what was copied: it is left out")


def _umask() -> int:
    """There is no way to read it but to set it."""
    was = os.umask(0o077)
    os.umask(was)
    return was


class _Pipe:
    """An open answer as a file that is read from its beginning to its end."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces, self.rest = pieces, b""

    def read(self, size: int) -> bytes:
        while len(self.rest) < size and (piece := next(self.pieces, b"")):
            self.rest += piece
        data, self.rest = self.rest[:size], self.rest[size:]
        return data
