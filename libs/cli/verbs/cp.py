"""`muster cp`: copy a file or folder from a job to this machine, or from node to node."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

import click

from libs.cli.flags.sizes import show_size
from libs.cli.gateway import Json, Stream, ask, job_path, opened
from libs.cli.terminal.output import complain
from libs.client.profile import read_profile
from libs.common.errors import Refused
from libs.common.quantities import counted

# The gateway's content type for a folder, and its header with the mode of a file.
TAR: Final = "application/x-tar"
MODE_HEADER: Final = "x-muster-mode"
FILES_MAX: Final = 10_000_000
# Pauses between two requests for the state of a copy from node to node.
LOOK_FIRST_S: Final = 0.05
LOOK_MAX_S: Final = 1.0


@click.command(short_help="Copy a file or folder from a job to this machine or another node.")
@click.argument("source", metavar="JOB:PATH")
@click.argument("target", metavar="[LOCAL]", default=".")
@click.option(
    "--to-node",
    metavar="NODE",
    help="Copy to this node. LOCAL is then JOB2:PATH, below the working directory of JOB2 there.",
)
@click.option(
    "--node", metavar="NODE", help="Copy from this node of a multi-node job (default: the first)."
)
@click.option(
    "--attempt",
    type=click.IntRange(1),
    metavar="N",
    help="Copy from this earlier attempt (default: the current one).",
)
def command(
    source: str, target: str, to_node: str | None, node: str | None, attempt: int | None
) -> int | None:
    """Copy a file or folder from a job to this machine or another node.

    PATH is relative to the job's working directory. You can copy while the job runs, and afterwards
    as long as its node keeps the directory.

    LOCAL is a directory to copy into, or the new name. If LOCAL is -, the command writes the file,
    or a tar archive of the folder, to standard output.

    With --to-node the bytes travel from node to node, not through the gateway. JOB2 must run on
    NODE, or have run there while the node keeps its directory.

    \b
    muster cp train:checkpoints/last.pt .
    muster cp train:checkpoints ./results
    muster cp train:metrics.json - | jq .loss
    muster cp --node node-2 train: - | tar tf -
    muster cp train:checkpoints --to-node node-3 eval:input
    """
    ref, colon, path = source.partition(":")
    if not colon or not ref:
        raise click.UsageError(
            f"{source!r} names no job: use JOB:PATH, for example train:{source}. To send files to "
            "a job, use muster submit --upload"
        )
    if to_node:
        return _to_node(ref, path, target, to_node, node=node, attempt=attempt)
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
    return None


def _to_node(
    ref: str, path: str, target: str, to_node: str, node: str | None, attempt: int | None
) -> int:
    """Copy to another node, and wait for the end. Return the exit code."""
    to_job, colon, to_path = target.partition(":")
    if not colon or not to_job:
        raise click.UsageError(
            f"{target!r} names no job: with --to-node use JOB2:PATH, for example eval:input"
        )
    body: Json = {"path": path, "to_node": to_node, "to_job": to_job, "to_path": to_path}
    body |= {"node_id": node or "", "attempt": attempt or 0}
    profile, look_s = read_profile(), LOOK_FIRST_S
    copy = ask(profile, "POST", job_path(ref, "copies"), body=body)
    where = job_path(copy["job_id"], "copies", str(copy["id"]))
    while copy["state"] == "copying":
        time.sleep(look_s)
        look_s = min(2 * look_s, LOOK_MAX_S)
        copy = ask(profile, "GET", where)
    if copy["state"] != "copied":
        complain(f"cannot copy from {copy['node_id']} to {copy['to_node']}: {copy['error']}")
        return 1
    if copy["skipped"]:
        complain(f"skipped {counted(copy['skipped'], 'link')} to outside the copied folder")
    click.echo(_copied(copy))
    return 0


def _copied(copy: Json) -> str:
    """Return the message about a copy that succeeded."""
    taken_s = max(copy["taken_ms"], 1) / 1_000
    size, rate = show_size(copy["size_bytes"]), show_size(int(copy["size_bytes"] / taken_s))
    over = f" over {copy['transport']}" if copy["transport"] else ""
    return (
        f"copied {counted(copy['files'], 'file')}, {size} in {taken_s:.1f} s ({rate}/s){over}, "
        f"from {copy['node_id']} to {copy['to_node']} as {copy['to_job']}:{copy['placed']}"
    )


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
