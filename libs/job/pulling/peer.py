"""A copy that comes from another node of the cluster instead of a hub.

`muster model pull --from-node` starts this program on both nodes, and lets the agents copy the
folder from the working directory of one job to that of the other (`muster cp --to-node`). The
hashes are those of the list that the source has from its hub; the agents are not believed either.
Tests: tests/integration/test_pull_program.py, tests/integration/test_pulled_cluster.py.
"""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from libs.job.pulling.copies import FROM_PEER, PARTS, Copies, Copy
from libs.job.pulling.download import Wanted, alone, digest_of, there
from libs.job.pulling.errors import PullError
from libs.job.pulling.listing import COMMIT, FILES_MAX, Listed, is_below
from libs.job.pulling.progress import show

# A copy from node to node takes at most one hour.
WAIT_S: Final = 4_000.0
LOOK_S: Final = 0.2
FILE_MODE: Final = 0o664

Say = Callable[[str], None]


def check_held(copies: Copies, wanted: Wanted, say: Say) -> None:
    """Check that a complete copy is here. Raises PullError."""
    copy = copies.find(wanted.repository, wanted.revision)
    if copy is None:
        raise PullError(f"this node has no copy of {wanted.repository} ({wanted.revision})")
    there(copies, copy, say)


def take(copies: Copies, wanted: Wanted, size_bytes: int, say: Say) -> None:
    """Wait for the folder that the agents copy here, verify it, and publish it.

    `wanted.revision` is COMMIT or COMMIT/NAME, where NAME is the revision under which the source
    pulled it. `size_bytes` is the size that the source reports. Raises PullError and OSError.
    """
    commit, _, name = wanted.revision.partition("/")
    if not COMMIT.fullmatch(commit):
        raise PullError(f"{commit!r} is not a commit: a copy from a node is one of a commit")
    landing = copies.folder / f"{FROM_PEER}{wanted.job_id}.{wanted.attempt}"
    copy = Copy(
        wanted.repository,
        commit,
        revisions=tuple(sorted({name or commit})),
        size_bytes=size_bytes,
        include=wanted.include,
        job_id=wanted.job_id,
    )
    with alone(copies, wanted.repository, say):
        try:
            if (held := copies.read(wanted.repository, commit)) is not None:
                there(copies, held, say)
                return
            copies.forget_wanted(wanted.repository)
            copies.make_room(copy, wanted.bound, wanted.free_bytes)
            say(f"{copy.reference}: ready for {show(size_bytes)} from another node")
            _await(landing)
            files = _checked(copies, copy, landing)
            _move(copies, copy, landing, files)
        finally:
            shutil.rmtree(landing, ignore_errors=True)
        size = sum(file.size_bytes for file in files)
        copies.publish(replace(copy, size_bytes=size, files=len(files)), files)
    say(f"pulled {copy.reference} from another node: {len(files)} files, {show(size)}")


def _await(landing: Path) -> None:
    until_s = time.monotonic() + WAIT_S
    while not landing.is_dir():
        if time.monotonic() > until_s:
            raise PullError("nothing came from the other node: run the pull again")
        time.sleep(LOOK_S)


def _checked(copies: Copies, copy: Copy, landing: Path) -> list[Listed]:
    """Return the files of the folder that came, each verified. Raises PullError."""
    files = copies.listed(copy.repository, copy.commit, landing)
    size = sum(file.size_bytes for file in files)
    if len(files) > FILES_MAX or size > copy.size_bytes:
        raise PullError(
            f"the other node sent a list of {len(files)} files with {size} bytes; it reported "
            f"{copy.size_bytes} bytes"
        )
    for file in files:
        path = landing / file.path
        if not is_below(file.path) or path.is_symlink() or not path.is_file():
            raise PullError(f"the other node did not send {file.path[:96]!r}")
        if path.stat().st_size != file.size_bytes or digest_of(path, file) != file.digest:
            raise PullError(
                f"{file.path} from the other node does not have the recorded hash: pull "
                f"{copy.reference} from the hub"
            )
    return files


def _move(copies: Copies, copy: Copy, landing: Path, files: list[Listed]) -> None:
    place = copies.place(copy.repository, copy.commit)
    for file in files:
        target = place / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        (landing / file.path).chmod(FILE_MODE)
        os.rename(landing / file.path, target)
    shutil.rmtree(copies.place(copy.repository, copy.commit, PARTS), ignore_errors=True)
