"""The records of a job directory: the marker, the identity of the supervisor, and the end.

`order.json` is the marker (`done.json` once forgotten): a (job, attempt) with a marker never starts
again. Its second line, the identity, is appended once, under a lock: exactly one supervisor, or the
agent that gives up the start, wins it, and nothing executes before. The winner appends its child as
a third line. `exit.json` is allocated before the start and written in place, so that the end can be
recorded on a full disk. There are no more files, because ext4 searches long for a free inode where
many were deleted lately.
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
# The reason why the runner of a container failed (`runtimes/runner.py`).
FAILURE = "container.err"
# The id of the attempt's container.
CONTAINER = "container.id"

OUT_OF_MEMORY = "out_of_memory"
EXIT_BYTES = 4096
MAX_LEFTOVERS = 16
MAX_DETAIL_CHARS = 400
# As it stands in the record: JSON writes up to 12 bytes for one character.
MAX_DETAIL_BYTES = 2_400
MAX_MARKER_BYTES = 64 * 1024
# One read shows the whole marker to a process that claims it, with the lines that follow.
MAX_SUMMARY_BYTES = MAX_MARKER_BYTES // 2


class Identity(TypedDict):
    """The supervisor of an attempt, and its child.

    `pid` 0: the agent gave up the start, and nothing may run. `job_pid` 0: not forked yet, or not
    recorded. `control` is the address of `control.py`, `cgroup` the directory of its control group,
    if any.
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
    """A process that outlived the job, by pid and start time on that boot.

    Only the name is kept: arguments may hold a secret.
    """

    pid: int
    start_ticks: int
    name: str


class ExitRecord(TypedDict):
    """The end of an attempt, with wall-clock times.

    `executed` is False if the command never started. `stdout_bytes` counts stored bytes (older
    segments may be gone), `dropped_bytes` what the disk refused. `leftovers_more` counts leftovers
    without room in the record, which can never be proved gone on this boot; another boot
    (`boot_id`) has none.
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
    """Make the directory, the exit record and the marker, all durable.

    Raises FileExistsError if the attempt was started before, OSError if the disk has no room, and
    ValueError for a summary that is too large; nothing is started then.
    """
    body = json.dumps(summary).encode()
    if len(body) >= MAX_SUMMARY_BYTES:
        raise ValueError(
            f"its marker would have {len(body)} bytes, and {MAX_SUMMARY_BYTES - 1} are allowed: "
            "give a shorter working directory"
        )
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
    """Return the first line of the marker, also of a forgotten one; empty if a power cut destroyed
    it.
    """
    marker = _read(f"{job_dir}/{MARKER}")
    return _first_line(marker) if marker else read_forgotten(job_dir)


def read_forgotten(job_dir: str) -> dict[str, Any]:
    """Return the first line of the marker of a forgotten attempt; empty if a power cut destroyed
    it.
    """
    return _first_line(_read(f"{job_dir}/{DONE}"))


def _first_line(marker: bytes) -> dict[str, Any]:
    return _parse(marker.partition(b"\n")[0]) or {}


def read_rank(job_dir: str) -> int:
    """Return the rank; 0 if a power cut destroyed the marker."""
    rank = read_summary(job_dir).get("rank", 0)
    return rank if isinstance(rank, int) else 0


def read_ignore_lease(job_dir: str) -> bool:
    """Return whether the job ignores the lease; False if a power cut destroyed the marker."""
    return read_summary(job_dir).get("ignore_lease") is True


def read_tenant(job_dir: str) -> str:
    """Return the tenant of an attempt, also of a forgotten one; empty if its marker names none."""
    note = read_summary(job_dir).get("note")
    return str(note.get("tenant", "")) if isinstance(note, dict) else ""


def write_exit(job_dir: str, record: ExitRecord) -> None:
    """Write the exit record in place, padded and synced, with as many leftovers as fit."""
    shown = ExitRecord(**record)
    shown["detail"] = _fitting(record["detail"])
    shown["leftovers"] = record["leftovers"][:MAX_LEFTOVERS]
    while True:
        shown["leftovers_more"] = len(record["leftovers"]) - len(shown["leftovers"])
        body = json.dumps(shown).encode().ljust(EXIT_BYTES - 1) + b"\n"
        if len(body) == EXIT_BYTES:
            break
        assert shown["leftovers"], "the exit record is larger than the room reserved for it"
        shown["leftovers"] = shown["leftovers"][:-1]
    _write_durably(job_dir, body)


def _fitting(detail: str) -> str:
    """Return the beginning of a detail that fits in the exit record."""
    shown = detail[:MAX_DETAIL_CHARS]
    while len(json.dumps(shown)) > MAX_DETAIL_BYTES:
        shown = shown[:-1]
    return shown


def note_out_of_memory(record: ExitRecord, kills: int, limit_bytes: int) -> str:
    """Note that the kernel ended processes for lack of memory; return the beginning of the detail.

    A job that was told to end, or succeeded all the same, keeps its reason.
    """
    if record["reason"] == "signalled" or (record["reason"] == "exited" and record["exit_code"]):
        record["reason"] = OUT_OF_MEMORY
    where = (
        f"at the job's limit of {limit_bytes >> 20} MiB"
        if limit_bytes
        else "because the machine had no more"
    )
    return f"out of host memory: the kernel ended {kills} of its processes {where}; "


def leftovers_of(pids: Iterable[int]) -> list[Leftover]:
    """Return the processes among these that still exist."""
    found = [process for pid in pids if (process := processes.process(pid)) is not None]
    return [
        Leftover(pid=process.pid, start_ticks=process.start_ticks, name=process.name)
        for process in found
    ]


def unexecuted(identity: Identity, reason: str, detail: str, now_ns: int) -> ExitRecord:
    """Return the record of an attempt whose command never started; all other records
    start from it.
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
    """Return the exit record; None while the attempt runs, or if a power cut destroyed it."""
    found = _parse(_read(f"{job_dir}/{EXIT}"))
    return None if found is None else ExitRecord(**found)  # type: ignore[typeddict-item]


def read_failure(job_dir: str) -> str:
    """Return why the runner of the attempt's container failed; empty if it did not."""
    return _read(f"{job_dir}/{FAILURE}")[:MAX_DETAIL_CHARS].decode(errors="replace").strip()


def claim(job_dir: str, identity: Identity) -> bool:
    """Claim the attempt; True for exactly one caller per job directory.

    That caller may execute the command, or decide that it never will be. False without a marker or
    for a forgotten attempt. Raises OSError if there is no room.
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
    """Record the child of the supervisor that has claimed the attempt.

    Raises OSError if there is no room; then only `status` knows it.
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
    """Return the identity; None if no supervisor has claimed the attempt, or a power cut destroyed
    it.
    """
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
    """Write the exit record in place, after the marker.

    Its blocks are written at the start, so that the end changes no metadata that must be synced
    too.
    """
    descriptor = os.open(f"{job_dir}/{EXIT}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.pwrite(descriptor, body, 0) < len(body):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if marker >= 0:
            # Start the write-back, so that the marker's sync includes the new file's metadata; that
            # saves one journal commit. Naming one byte writes its whole page, but unlike naming the
            # page it does not search every processor's page lists.
            os.posix_fadvise(descriptor, 0, 1, os.POSIX_FADV_DONTNEED)
            os.fsync(marker)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: str) -> bytes:
    """Return a file's content; empty if there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.read(descriptor, MAX_MARKER_BYTES)
    finally:
        os.close(descriptor)


def _parse(raw: bytes) -> dict[str, Any] | None:
    """Return the decoded line; None if it is empty or torn."""
    text = raw.strip(b"\0 \n")
    try:
        found = json.loads(text.decode()) if text else None  # of bytes it would guess the encoding
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
