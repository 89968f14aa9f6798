"""The files of a job directory, except its output: who may start it, who watches it, how it ended.

`order.json` is the marker (renamed `done.json` once forgotten): a (job, attempt) with a marker is
never started again. Its second line, the identity, is appended once, under a lock: exactly one
supervisor, or the agent that gives the start up, wins it; nothing is executed before. The winner
appends a third, its child, once that is forked. `exit.json` is allocated before the start and
written in place, so that the end can be recorded on a full disk. There are no more files, because
ext4 searches long for a free inode where many were deleted within the last minutes.
"""

import errno
import fcntl
import json
import os
from collections.abc import Iterable
from typing import Any, TypedDict

from services.node_agent.machine import processes

MARKER = "order.json"
DONE = "done.json"
EXIT = "exit.json"
CRASH = "supervisor.err"
# Why the runner of a container failed (`runtimes/runner.py`).
FAILURE = "container.err"

EXIT_BYTES = 4096
MAX_LEFTOVERS = 16
MAX_DETAIL_CHARS = 400
MAX_MARKER_BYTES = 64 * 1024


class Identity(TypedDict):
    """Who supervises, and whom.

    `pid` 0: the agent gave the start up, and nothing may run. `job_pid` 0: not forked yet, or
    nobody had the time to say. `control` is what `control.py` listens on, `cgroup` the directory of
    its control group, if it has one.
    """

    job_id: str
    attempt: int
    rank: int
    pid: int
    start_ticks: int
    job_pid: int
    job_start_ticks: int
    boot_id: str
    started_ns: int
    control: str
    cgroup: str


class Leftover(TypedDict):
    """A process, known by its number and its start time on that boot.

    The name alone: arguments may hold a secret.
    """

    pid: int
    start_ticks: int
    name: str


class ExitRecord(TypedDict):
    """How an attempt ended.

    Wall-clock times; `executed` is False when the command never began. `stdout_bytes` counts what
    was stored (older segments may be gone), `dropped_bytes` what the disk refused. `leftovers_more`
    counts those that had no room, of which nobody can say later that they are gone; a machine that
    was booted again (`boot_id`) has none of either.
    """

    job_id: str
    attempt: int
    rank: int
    executed: bool
    exit_code: int | None
    signal: int | None
    reason: str
    detail: str
    started_ns: int
    ended_ns: int
    duration_ns: int
    stdout_bytes: int
    stderr_bytes: int
    dropped_bytes: int
    leftovers: list[Leftover]
    leftovers_more: int
    boot_id: str
    clean: bool


def place_marker(job_dir: str, summary: dict[str, Any]) -> None:
    """Makes the directory, allocates the exit record, then the marker, all durable.

    Raises FileExistsError when the attempt was started before, and OSError when the disk has no
    room; in both cases nothing is started.
    """
    body = json.dumps(summary).encode()
    assert len(body) < MAX_MARKER_BYTES // 2, "who claims must see the whole marker"
    try:
        os.mkdir(job_dir, mode=0o700)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(job_dir), mode=0o700, exist_ok=True)
        os.mkdir(job_dir, mode=0o700)
    except FileExistsError:
        if os.path.exists(f"{job_dir}/{DONE}"):
            raise FileExistsError(
                f"{job_dir}/{DONE} exists: this attempt was started before"
            ) from None
    marker = os.open(
        f"{job_dir}/{MARKER}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
    )
    try:
        os.write(marker, body)
        _write_durably(job_dir, bytes(EXIT_BYTES), marker)
    except OSError:
        os.unlink(f"{job_dir}/{MARKER}")
        raise
    finally:
        os.close(marker)
    sync_folder(job_dir)
    sync_folder(os.path.dirname(job_dir))


def read_summary(job_dir: str) -> dict[str, Any]:
    """From the marker, also a forgotten one; empty when a power cut tore it."""
    marker = _read(f"{job_dir}/{MARKER}") or _read(f"{job_dir}/{DONE}")
    return _parse(marker.partition(b"\n")[0]) or {}


def read_rank(job_dir: str) -> int:
    """0 when a power cut tore the marker."""
    rank = read_summary(job_dir).get("rank", 0)
    return rank if isinstance(rank, int) else 0


def read_ignore_lease(job_dir: str) -> bool:
    """False when a power cut tore the marker, for then nothing runs."""
    return read_summary(job_dir).get("ignore_lease") is True


def write_exit(job_dir: str, record: ExitRecord) -> None:
    """In place, padded to the allocated size, synced; as many leftovers as there is room for."""
    shown = ExitRecord(**record)
    shown["detail"] = record["detail"][:MAX_DETAIL_CHARS]
    shown["leftovers"] = record["leftovers"][:MAX_LEFTOVERS]
    while True:
        shown["leftovers_more"] = len(record["leftovers"]) - len(shown["leftovers"])
        body = json.dumps(shown).encode().ljust(EXIT_BYTES - 1) + b"\n"
        if len(body) == EXIT_BYTES:
            break
        assert shown["leftovers"], "the exit record is larger than the room reserved for it"
        shown["leftovers"] = shown["leftovers"][:-1]
    _write_durably(job_dir, body)


def leftovers_of(pids: Iterable[int]) -> list[Leftover]:
    """Those that are still there, as they are found again later."""
    found = [process for pid in pids if (process := processes.process(pid)) is not None]
    return [
        Leftover(pid=process.pid, start_ticks=process.start_ticks, name=process.name)
        for process in found
    ]


def unexecuted(identity: Identity, reason: str, detail: str, now_ns: int) -> ExitRecord:
    """The record of an attempt whose command never began; also what every other record is filled in
    from.
    """
    return ExitRecord(
        job_id=identity["job_id"],
        attempt=identity["attempt"],
        rank=identity["rank"],
        executed=False,
        exit_code=None,
        signal=None,
        reason=reason,
        detail=detail,
        started_ns=identity["started_ns"],
        ended_ns=now_ns,
        duration_ns=0,
        stdout_bytes=0,
        stderr_bytes=0,
        dropped_bytes=0,
        leftovers=[],
        leftovers_more=0,
        boot_id=identity["boot_id"],
        clean=True,
    )


def read_exit(job_dir: str) -> ExitRecord | None:
    """None while the attempt has not ended (or its end was torn by a power cut)."""
    found = _parse(_read(f"{job_dir}/{EXIT}"))
    return None if found is None else ExitRecord(**found)  # type: ignore[typeddict-item]


def read_failure(job_dir: str) -> str:
    """Return why the runner of the attempt's container failed; empty if it did not."""
    return _read(f"{job_dir}/{FAILURE}")[:MAX_DETAIL_CHARS].decode(errors="replace").strip()


def claim(job_dir: str, identity: Identity) -> bool:
    """True for exactly one caller per job directory: that one may execute the command (or may say
    that nobody will).

    False for an attempt that has no marker or is forgotten. Raises OSError when there is no room.
    """
    try:
        marker = os.open(f"{job_dir}/{MARKER}", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(marker, fcntl.LOCK_EX)
        summary = os.read(marker, MAX_MARKER_BYTES)
        if b"\n" in summary:
            return False
        line = b"\n" + json.dumps(identity).encode()
        if os.write(marker, line) < len(line):
            os.ftruncate(marker, len(summary))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(marker)
    return True


def add_child(job_dir: str, job_pid: int, job_start_ticks: int) -> None:
    """By the supervisor that has claimed the attempt.

    Raises OSError when there is no room: then only `status` knows.
    """
    marker = os.open(f"{job_dir}/{MARKER}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(
            marker,
            b"\n" + json.dumps({"job_pid": job_pid, "job_start_ticks": job_start_ticks}).encode(),
        )
    finally:
        os.close(marker)


def read_identity(job_dir: str) -> Identity | None:
    """None while no supervisor has claimed the attempt, or when a power cut tore the file."""
    _, _, claimed = _read(f"{job_dir}/{MARKER}").partition(b"\n")
    identity, _, child = claimed.partition(b"\n")
    found = _parse(identity)
    return None if found is None else Identity(**{**found, **(_parse(child) or {})})  # type: ignore[typeddict-item]


def sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_durably(job_dir: str, body: bytes, marker: int = -1) -> None:
    """The exit record, in place, after the marker.

    Its blocks are written at the start and not only reserved, so that the end changes no metadata
    that would have to be synced too.
    """
    descriptor = os.open(f"{job_dir}/{EXIT}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.pwrite(descriptor, body, 0) < len(body):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if marker >= 0:
            # Begins to write, so that the marker's sync takes the new file's metadata along: one
            # journal commit less to wait for. Of one byte, because that writes its page (all there
            # is) and, unlike of the whole page, searches every processor's lists for none.
            os.posix_fadvise(descriptor, 0, 1, os.POSIX_FADV_DONTNEED)
            os.fsync(marker)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: str) -> bytes:
    """Nothing when there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.read(descriptor, MAX_MARKER_BYTES)
    finally:
        os.close(descriptor)


def _parse(raw: bytes) -> dict[str, Any] | None:
    """None for nothing, and for what a power cut tore."""
    text = raw.strip(b"\0 \n")
    try:
        found = json.loads(text.decode()) if text else None  # of bytes it would guess the encoding
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
