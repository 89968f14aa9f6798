"""The files of a job directory, except its output: who may start it, who watches it, how it ended.

`order.json` is the marker (renamed `done.json` once forgotten): a (job, attempt) with a marker is never started again.
`supervisor.json` appears by a rename that never replaces, so exactly one supervisor, or the agent that gives the start up, wins it;
nothing is executed before. `exit.json` is allocated before the start and written in place, so that the end can be recorded on a full disk.
"""

import contextlib
import json
import os
from typing import Any, TypedDict

from services.node_agent.supervision.processes import rename_new

MARKER = "order.json"
DONE = "done.json"
IDENTITY = "supervisor.json"
EXIT = "exit.json"
CRASH = "supervisor.err"
CONTROL = "control.sock"

EXIT_BYTES = 4096
MAX_LEFTOVERS = 16
MAX_DETAIL_CHARS = 400
MAX_RECORD_BYTES = 64 * 1024


class Identity(TypedDict):
    """Who supervises, and whom. `pid` 0: the agent gave the start up, and nothing may run."""

    job_id: str
    attempt: int
    rank: int
    pid: int
    start_ticks: int
    job_pid: int
    job_start_ticks: int
    boot_id: str
    started_ns: int


class Leftover(TypedDict):
    pid: int
    command: str


class ExitRecord(TypedDict):
    """How an attempt ended. Wall-clock times; `executed` is False when the command never began. `stdout_bytes` counts what was
    stored (older segments may be gone), `dropped_bytes` what the disk refused."""

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
    clean: bool


def place_marker(job_dir: str, summary: dict[str, Any]) -> None:
    """Makes the directory, allocates the exit record, then the marker, all durable. Raises FileExistsError when the attempt was
    started before, and OSError when the disk has no room; in both cases nothing is started."""
    os.makedirs(os.path.dirname(job_dir), mode=0o700, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(job_dir, mode=0o700)
    if os.path.exists(f"{job_dir}/{DONE}"):
        raise FileExistsError(f"{job_dir}/{DONE} exists: this attempt was started before")
    marker = os.open(f"{job_dir}/{MARKER}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(marker, json.dumps(summary).encode())
        allocate_exit(job_dir)
        os.fsync(marker)
    except OSError:
        os.unlink(f"{job_dir}/{MARKER}")
        raise
    finally:
        os.close(marker)
    sync_folder(job_dir)
    sync_folder(os.path.dirname(job_dir))


def read_rank(job_dir: str) -> int:
    """From the marker; 0 when a power cut tore it."""
    rank = (_read_json(f"{job_dir}/{MARKER}") or {}).get("rank", 0)
    return rank if isinstance(rank, int) else 0


def allocate_exit(job_dir: str) -> None:
    """Reserves and syncs the blocks of the exit record, unless that was done before. Raises OSError when there is no room."""
    descriptor = os.open(f"{job_dir}/{EXIT}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_size < EXIT_BYTES:
            os.posix_fallocate(descriptor, 0, EXIT_BYTES)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_exit(job_dir: str, record: ExitRecord) -> None:
    """In place, padded to the allocated size, synced."""
    shown = ExitRecord(**record)
    shown["detail"] = record["detail"][:MAX_DETAIL_CHARS]
    shown["leftovers"] = record["leftovers"][:MAX_LEFTOVERS]
    body = json.dumps(shown).encode().ljust(EXIT_BYTES - 1) + b"\n"
    assert len(body) == EXIT_BYTES, "the exit record is larger than the room reserved for it"
    descriptor = os.open(f"{job_dir}/{EXIT}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, body, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unexecuted(identity: Identity, reason: str, detail: str, now_ns: int) -> ExitRecord:
    """The record of an attempt whose command never began; also what every other record is filled in from."""
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
        clean=True,
    )


def read_exit(job_dir: str) -> ExitRecord | None:
    """None while the attempt has not ended (or its end was torn by a power cut)."""
    found = _read_json(f"{job_dir}/{EXIT}")
    return None if found is None else ExitRecord(**found)  # type: ignore[typeddict-item]


def claim(job_dir: str, identity: Identity) -> bool:
    """True for exactly one caller per job directory: that one may execute the command (or may say that nobody will)."""
    draft = f"{job_dir}/{IDENTITY}.{os.getpid()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(identity).encode())
    finally:
        os.close(descriptor)
    try:
        rename_new(draft, f"{job_dir}/{IDENTITY}")
    except FileExistsError:
        os.unlink(draft)
        return False
    return True


def read_identity(job_dir: str) -> Identity | None:
    """None while no supervisor has claimed the attempt, or when a power cut tore the file."""
    found = _read_json(f"{job_dir}/{IDENTITY}")
    return None if found is None else Identity(**found)  # type: ignore[typeddict-item]


def sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        raw = os.read(descriptor, MAX_RECORD_BYTES).strip(b"\0 \n")
        found = json.loads(raw) if raw else None
    except ValueError:
        return None
    finally:
        os.close(descriptor)
    return found if isinstance(found, dict) else None
