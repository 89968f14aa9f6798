"""Makes one copy: lists the files, makes room, fetches and verifies each file, publishes the copy.

A file that was cut short continues where it ended (Range). A file gets its name only when its hash
is right, and the copy its description only when all files are there. So a pull that was killed at
any moment is repeated by the same command. Tests: tests/integration/test_pull_program.py,
tests/attack/test_hostile_hub.py.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from libs.job.pulling.copies import PARTS, Copies, Copy
from libs.job.pulling.errors import Broken, PullError, Stopped
from libs.job.pulling.hub import Body, Hub
from libs.job.pulling.listing import COMMIT, GIT, Listed, chosen
from libs.job.pulling.progress import Progress, show

FILES_AT_ONCE: Final = 4
# Requests in a row that bring next to nothing new, and pauses between them.
TRIES: Final = 6
PAUSE_FIRST_S: Final = 0.5
PAUSE_MAX_S: Final = 20.0
# Times that a whole file may have the wrong hash.
WRONG_MAX: Final = 2
# A connection that brings fewer bytes than these in this time is given up.
SLOW_S: Final = 30.0
SLOW_BYTES: Final = 32 << 10
READ_BYTES: Final = 1 << 20
# Bytes of the disk that stay free.
FREE_BYTES: Final = 1 << 30

T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """The copy to make. `bound` limits the bytes of all copies together (0: no limit)."""

    repository: str
    revision: str
    include: tuple[str, ...] = ()
    bound: int = 0
    job_id: str = ""
    attempt: str = ""
    free_bytes: int = FREE_BYTES


def pull(hub: Hub, copies: Copies, wanted: Wanted, say: Say) -> Copy:
    """Make a copy, and return it. Raises PullError and OSError."""
    held = copies.find(wanted.repository, wanted.revision)
    if held is not None and COMMIT.fullmatch(wanted.revision) and not held.include:
        return there(copies, held, say)
    commit = _patiently(lambda: hub.commit(wanted.repository, wanted.revision), say)
    with alone(copies, wanted.repository, say):
        copies.forget_wanted(wanted.repository)
        listed = _patiently(lambda: hub.files(wanted.repository, commit), say)
        return _made(hub, copies, wanted, commit, chosen(listed, wanted.include), say)


@contextlib.contextmanager
def alone(copies: Copies, repository: str, say: Say) -> Iterator[None]:
    """Hold the lock of a repository; say so if that must wait."""
    with copies.locked(repository, waits=False) as is_mine:
        if is_mine:
            yield
            return
    say(f"{repository}: another pull of it is running: this one waits for its end")
    with copies.locked(repository):
        yield


def there(copies: Copies, copy: Copy, say: Say) -> Copy:
    copies.touch(copy)
    say(f"{copy.reference} is there already: {copy.files} files, {show(copy.size_bytes)}")
    return copy


def _made(
    hub: Hub, copies: Copies, wanted: Wanted, commit: str, files: list[Listed], say: Say
) -> Copy:
    """Make the copy of these files in a repository that this process has locked."""
    held = copies.read(wanted.repository, commit)
    known = _known(copies, held)
    missing = [file for file in files if file.path not in known]
    whole = sorted({**known, **{file.path: file for file in files}}.values())
    revisions = {wanted.revision, *(held.revisions if held else ())}
    copy = Copy(
        wanted.repository,
        commit,
        revisions=tuple(sorted(revisions)),
        size_bytes=sum(file.size_bytes for file in whole),
        files=len(whole),
        include=_include(held, wanted.include),
        job_id=wanted.job_id,
    )
    if held is not None and not missing:
        copies.publish(copy, whole)
        return there(copies, copy, say)
    copies.make_room(copy, wanted.bound, wanted.free_bytes)
    began_s = time.monotonic()
    progress = Progress(wanted.repository, copy.size_bytes, say)
    progress.found(sum(file.size_bytes for file in known.values()))
    fetch_all(_Fetch(hub, copies, copy, progress, say), missing)
    copies.publish(copy, whole)
    took_s = max(time.monotonic() - began_s, 0.001)
    say(
        f"pulled {copy.reference}: {copy.files} files, {show(copy.size_bytes)} in {took_s:.1f} s "
        f"({show(int(progress.came_bytes / took_s))}/s)"
    )
    return copy


def _known(copies: Copies, held: Copy | None) -> dict[str, Listed]:
    """Return the files of a complete copy by path; none if its list cannot be read."""
    with contextlib.suppress(PullError):
        listed = copies.listed(held.repository, held.commit) if held is not None else []
        return {file.path: file for file in listed}
    return {}


def _include(held: Copy | None, patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns of the whole copy; none if it has all files."""
    if not patterns or (held is not None and not held.include):
        return ()
    return tuple(sorted({*patterns, *(held.include if held is not None else ())}))


@dataclass
class _Fetch:
    """The parts that every file of one copy needs."""

    hub: Hub
    copies: Copies
    copy: Copy
    progress: Progress
    say: Say
    failed: bool = False


def fetch_all(fetch: _Fetch, files: Sequence[Listed]) -> None:
    """Fetch these files, several at once. Raises the error that stopped the others."""
    parts = fetch.copies.place(fetch.copy.repository, fetch.copy.commit, PARTS)
    parts.mkdir(parents=True, exist_ok=True)
    largest_first = sorted(files, key=lambda file: -file.size_bytes)
    with ThreadPoolExecutor(FILES_AT_ONCE) as threads:
        tasks = [threads.submit(_fetch, fetch, file, parts) for file in largest_first]
        done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
        fetch.failed = any(task.exception() for task in done)
        if fetch.failed:
            threads.shutdown(wait=True, cancel_futures=True)
    found = [task.exception() for task in tasks if not task.cancelled()]
    errors = [error for error in found if error is not None]
    for error in sorted(errors, key=lambda each: isinstance(each, Stopped)):
        raise error


def _fetch(fetch: _Fetch, file: Listed, parts: Path) -> None:
    """Fetch and verify one file, and give it its name."""
    place = fetch.copies.place(fetch.copy.repository, fetch.copy.commit) / file.path
    if place.is_file() and not place.is_symlink() and place.stat().st_size == file.size_bytes:
        fetch.progress.found(file.size_bytes)  # an earlier pull verified it
        return
    name = hashlib.sha256(f"{file.path}\n{file.digest}".encode()).hexdigest()[:40]
    part = parts / name
    for _ in range(WRONG_MAX):
        _complete(fetch, file, part)
        if digest_of(part, file) == file.digest:
            place.parent.mkdir(parents=True, exist_ok=True)
            os.rename(part, place)
            return
        fetch.progress.found(-file.size_bytes)
        part.unlink()
    raise PullError(
        f"{fetch.copy.repository}: {file.path} does not have the hash that the hub's list says "
        f"({file.algorithm} {file.digest}), {WRONG_MAX} times: the hub, or a proxy on the way, "
        "sends wrong data. Nothing of the file was kept"
    )


def _complete(fetch: _Fetch, file: Listed, part: Path) -> None:
    """Fetch the bytes of a file that are missing. Raises PullError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(part, flags, 0o664), "r+b") as out:
        have = out.seek(0, os.SEEK_END)
        if have > file.size_bytes:
            have = out.truncate(0)
        fetch.progress.found(have)
        tries, pause_s, most = 0, PAUSE_FIRST_S, have
        while (have := out.seek(0, os.SEEK_END)) < file.size_bytes:
            if fetch.failed:
                raise Stopped("another file failed")
            try:
                with fetch.hub.opened(
                    fetch.copy.repository, fetch.copy.commit, file.path, have
                ) as body:
                    if body.start < have:
                        fetch.progress.found(body.start - have)
                        out.truncate(body.start)
                        out.seek(body.start)
                        have = body.start
                    _copy(fetch, file, body, out, have)
            except Broken as error:
                # A hub that begins again each time brings nothing new.
                came = out.seek(0, os.SEEK_END) - most
                most += max(came, 0)
                tries = 0 if came >= SLOW_BYTES else tries + 1
                pause_s = PAUSE_FIRST_S if came >= SLOW_BYTES else pause_s
                if tries >= TRIES:
                    raise PullError(
                        f"{fetch.copy.repository}: {file.path}: {error}. It was tried {TRIES} "
                        "times; run the pull again to continue"
                    ) from error
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
        out.flush()
        os.fsync(out.fileno())


def _copy(fetch: _Fetch, file: Listed, body: Body, out: BinaryIO, have: int) -> None:
    """Write the rest of a file. Raises Broken if it ends early or is too slow."""
    since_s, slow_bytes = time.monotonic(), 0
    while piece := body.read():
        if have + len(piece) > file.size_bytes:
            out.truncate(0)
            raise PullError(
                f"{fetch.copy.repository}: the hub sends more than the {file.size_bytes} bytes of "
                f"{file.path} that its list says"
            )
        out.write(piece)
        have += len(piece)
        slow_bytes += len(piece)
        fetch.progress.came(len(piece))
        if fetch.failed:
            raise Stopped("another file failed")
        now_s = time.monotonic()
        if now_s - since_s > SLOW_S:
            if slow_bytes < SLOW_BYTES:
                raise Broken(f"the hub sent only {slow_bytes} bytes in {SLOW_S:.0f} s")
            since_s, slow_bytes = now_s, 0
    if have < file.size_bytes:
        raise Broken(f"the hub sent {have} of {file.size_bytes} bytes")


def digest_of(path: Path, file: Listed) -> str:
    """Return the hash of a file's content by the algorithm of the list. Raises OSError."""
    made = hashlib.sha1(usedforsecurity=False) if file.algorithm == GIT else hashlib.sha256()
    if file.algorithm == GIT:
        made.update(b"blob %d\0" % file.size_bytes)
    with open(path, "rb") as stream:
        while data := stream.read(READ_BYTES):
            made.update(data)
    return made.hexdigest()


def _patiently(ask: Callable[[], T], say: Say) -> T:
    """Return an answer of the hub, after several tries. Raises PullError."""
    pause_s = PAUSE_FIRST_S
    for left in range(TRIES - 1, -1, -1):
        try:
            return ask()
        except Broken as error:
            if not left:
                raise
            say(f"{error}: trying again in {pause_s:.1f} s")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
    raise AssertionError("the loop returns or raises")
