"""Frames of streamed answers: lines of JSON, server-sent events, and what messages they become.

Pure. Tests: tests/unit/test_rpc_streams.py.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from libs.common.errors import Unavailable
from services.api_gateway.intents.fields import UNREADABLE

DONE: Final = b"[DONE]"
WATCHED: Final = ("job", "node", "ready")
# Fields of server-sent events that are read.
READ: Final = (b"event", b"id", b"data")
# A line or an event is at most this long: more than the gateway itself sends in one.
FRAME_BYTES_MAX: Final = 16 << 20


class Oversized(Unavailable):
    """An answer, or one frame of it, is larger than may be kept."""


def check_size(size: int, most: int) -> None:
    """Raise Oversized if a part of an answer has more than `most` bytes."""
    if size > most:
        raise Oversized(
            f"the answer, or one event of it, has more than {most} bytes: ask for less, or for an "
            "answer of a model use CallModel, which passes bytes on as they come"
        )


class Lines:
    """Cuts bytes into lines. The last line without an end waits for its rest."""

    def __init__(self, most: int = FRAME_BYTES_MAX) -> None:
        self.most = most
        self._rest = bytearray()

    @property
    def size(self) -> int:
        """The bytes that wait for their rest."""
        return len(self._rest)

    def add(self, piece: bytes) -> list[bytes]:
        """Return the lines that are whole now. Raises Oversized for a line above the bound."""
        first, *others = piece.split(b"\n")
        check_size(len(self._rest) + len(first), self.most)
        self._rest += first
        if not others:
            return []
        whole = [bytes(self._rest), *others[:-1]]
        check_size(max(len(line) for line in others), self.most)
        self._rest = bytearray(others[-1])
        return [line.rstrip(b"\r") for line in whole]


class Served(NamedTuple):
    """One server-sent event."""

    event: str
    id: str
    data: bytes


class ServedEvents:
    """Cuts bytes into server-sent events. Comments, which keep a connection open, are left out."""

    def __init__(self, most: int = FRAME_BYTES_MAX) -> None:
        self.most = most
        self._lines = Lines(most)
        self._fields: dict[bytes, bytearray] = {}

    @property
    def size(self) -> int:
        """The bytes that wait for their rest."""
        return self._lines.size + sum(map(len, self._fields.values()))

    def add(self, piece: bytes) -> Iterator[Served]:
        """Return the events that are whole now. Raises Oversized for one above the bound."""
        for line in self._lines.add(piece):
            if line:
                self._note(line)
            elif self._fields:
                found, self._fields = self._fields, {}
                yield Served(
                    found.get(b"event", b"").decode(errors="replace"),
                    found.get(b"id", b"").decode(errors="replace"),
                    bytes(found.get(b"data", b"")),
                )

    def _note(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name not in READ:
            return
        value = value.removeprefix(b" ")
        if name == b"data" and name in self._fields:
            self._fields[name] += b"\n" + value
        else:
            self._fields[name] = bytearray(value)
        check_size(sum(map(len, self._fields.values())), self.most)


def parsed(data: bytes) -> dict[str, Any] | None:
    """Return a JSON object; None for anything else."""
    try:
        found = msgspec.json.decode(data)
    except UNREADABLE:
        return None
    return found if isinstance(found, dict) else None


def change_of(served: Served) -> dict[str, Any] | None:
    """Return the fields of a Change; None for an event of a kind that it does not know."""
    found = parsed(served.data)
    if found is None or served.event not in WATCHED:
        return None
    seq = int(served.id) if served.id.isascii() and served.id.isdigit() else 0
    return {"event": served.event, "seq": seq, served.event: found}
