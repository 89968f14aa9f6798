"""Frames of streamed answers: lines of JSON, server-sent events, and what messages they become.

Pure. Tests: tests/unit/test_rpc_streams.py.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from services.api_gateway.intents.fields import UNREADABLE

DONE: Final = b"[DONE]"
WATCHED: Final = ("job", "node", "ready")


class Lines:
    """Cuts bytes into lines. The last line without an end waits for its rest."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, piece: bytes) -> list[bytes]:
        """Return the lines that are whole now."""
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return [line.rstrip(b"\r") for line in whole]


class Served(NamedTuple):
    """One server-sent event."""

    event: str
    id: str
    data: bytes


class ServedEvents:
    """Cuts bytes into server-sent events. Comments, which keep a connection open, are left out."""

    def __init__(self) -> None:
        self._lines = Lines()
        self._fields: dict[bytes, bytes] = {}

    def add(self, piece: bytes) -> Iterator[Served]:
        """Return the events that are whole now."""
        for line in self._lines.add(piece):
            if line:
                self._note(line)
            elif self._fields:
                found, self._fields = self._fields, {}
                yield Served(
                    found.get(b"event", b"").decode(errors="replace"),
                    found.get(b"id", b"").decode(errors="replace"),
                    found.get(b"data", b""),
                )

    def _note(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if not name:
            return
        value = value.removeprefix(b" ")
        if name == b"data" and name in self._fields:
            value = self._fields[name] + b"\n" + value
        self._fields[name] = value


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
