"""The aligned traces that a node keeps, in folders of the agent: TRACES/ATTEMPT/TRACE.

Each has `trace.json`, its state, and one compressed file for each process. They outlive the attempt
and the agent; the oldest go when a bound is reached (`surplus.py`). Tests:
tests/integration/test_tracing_agent.py.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from libs.common.messages.trace_messages import (
    FAILED,
    INVALID,
    PART_BYTES,
    READY,
    UNKNOWN,
    TracePart,
    TraceState,
)
from libs.common.model import JobId
from libs.common.safety.folder_walk import remove_tree
from services.node_agent.tracing.surplus import Held, surplus

STATE: Final = "trace.json"
TRACE_ID: Final = re.compile(r"[0-9a-f]{16}")
# Traces in one answer.
LISTED_MAX: Final = 100
# What a trace counts at least, so that the number of traces is bounded too.
LEAST_BYTES: Final = 1 << 20
# The largest `trace.json`. One with all processes and long errors has less.
STATE_BYTES: Final = 1 << 20


class Note(msgspec.Struct, frozen=True):
    """The content of `trace.json`."""

    tenant: str
    made_ns: int
    state: TraceState


_note = msgspec.json.Decoder(Note)


class Kept:
    """The kept traces of one agent."""

    def __init__(self, folder: Path, job_bytes: int, node_bytes: int) -> None:
        self.folder, self.job_bytes, self.node_bytes = folder, job_bytes, node_bytes
        self.notes: dict[str, Note] = {}
        # The bytes of each trace by its folder, with its `trace.json`.
        self.sizes: dict[str, int] = {}

    def load(self) -> None:
        """Read what earlier agents kept, and remove what they did not complete. Blocks."""
        for attempt in _folders(self.folder):
            for trace in _folders(attempt):
                try:
                    data = _bounded(trace / STATE)
                    note = _note.decode(data)
                except (OSError, msgspec.DecodeError):
                    remove_tree(trace)
                    continue
                self._put(str(trace), note, len(data))
            with contextlib.suppress(OSError):
                attempt.rmdir()

    def place(self, key: str, trace: str) -> Path:
        """Create the folder of a new trace. Raises OSError."""
        folder = self.folder / key / trace
        folder.mkdir(mode=0o700, parents=True)
        return folder

    def add(self, folder: Path, note: Note) -> Note:
        """Keep a trace whose files are complete, and remove what exceeds the bounds. Blocks.

        Return the note that is kept: a trace that is larger than a bound has failed. Raises OSError
        if the state cannot be written; the folder is then removed, because it would count nowhere.
        """
        bound = min(self.job_bytes, self.node_bytes)
        if _file_bytes(note) + len(msgspec.json.encode(note)) > max(bound, LEAST_BYTES):
            note = _too_large(folder, note, bound)
        data = msgspec.json.encode(note)
        try:
            (folder / STATE).write_bytes(data)
        except OSError:
            remove_tree(folder)
            raise
        self._put(str(folder), note, len(data))
        for old in surplus(list(self._held()), self.job_bytes, self.node_bytes):
            self.notes.pop(old.folder, None)
            self.sizes.pop(old.folder, None)
            remove_tree(old.folder)
            with contextlib.suppress(OSError):
                Path(old.folder).parent.rmdir()
        return note

    def state(self, key: str, trace: str) -> TraceState | None:
        """Return the state of a kept trace."""
        note = self.notes.get(str(self.folder / key / trace))
        return note.state if note is not None else None

    def of(self, job_id: JobId) -> list[TraceState]:
        """Return the traces of a job, the newest first."""
        found = [note for note in self.notes.values() if note.state.job_id == job_id]
        found.sort(key=lambda note: -note.made_ns)
        return [note.state for note in found[:LISTED_MAX]]

    def read(self, key: str, trace: str, file: int, offset: int) -> TracePart:
        """Return a part of a file of a kept trace. Blocks."""
        state = self.state(key, trace)
        if state is None or state.state != READY:
            return TracePart(fault=UNKNOWN, text=f"trace {trace} of {key} is not kept here")
        if not 0 <= file < len(state.processes) or offset < 0:
            return TracePart(fault=INVALID, text=f"trace {trace} has no file {file}")
        if state.processes[file].state != READY:
            return TracePart()
        try:
            descriptor = os.open(
                self.folder / key / trace / f"{file}.json.gz", os.O_RDONLY | os.O_CLOEXEC
            )
        except FileNotFoundError:  # the trace was removed meanwhile
            return TracePart(fault=UNKNOWN, text=f"trace {trace} of {key} is not kept here")
        try:
            size = os.fstat(descriptor).st_size
            return TracePart(size_bytes=size, data=os.pread(descriptor, PART_BYTES, offset))
        finally:
            os.close(descriptor)

    def _put(self, folder: str, note: Note, state_bytes: int) -> None:
        self.notes[folder] = note
        self.sizes[folder] = max(_file_bytes(note) + state_bytes, LEAST_BYTES)

    def _held(self) -> Iterator[Held]:
        for folder, note in self.notes.items():
            yield Held(folder, note.tenant, note.state.job_id, note.made_ns, self.sizes[folder])


def _file_bytes(note: Note) -> int:
    return sum(process.size_bytes for process in note.state.processes)


def _too_large(folder: Path, note: Note, bound: int) -> Note:
    """Remove the files of a trace, and return its note with the reason. Blocks."""
    why = (
        f"the trace has {_file_bytes(note) >> 20} MiB on this node, which keeps at most "
        f"{bound >> 20} MiB of a job: trace a shorter time or fewer ranks"
    )
    for number in range(len(note.state.processes)):
        (folder / f"{number}.json.gz").unlink(missing_ok=True)
    processes = tuple(
        replace(one, state=FAILED, size_bytes=0, error=why) if one.state == READY else one
        for one in note.state.processes
    )
    return replace(note, state=replace(note.state, state=FAILED, processes=processes, text=why))


def _bounded(path: Path) -> bytes:
    """Return the content of a `trace.json`. Raises OSError if it is too large."""
    with path.open("rb") as file:
        data = file.read(STATE_BYTES + 1)
    if len(data) > STATE_BYTES:
        raise OSError(0, f"{path} has more than {STATE_BYTES} bytes")
    return data


def _folders(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()]
    return []
