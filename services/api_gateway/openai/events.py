"""A stream of server-sent events, cut anywhere, as whole events; and the usage that one of them carries.

Pure. Only whole events go to the client, so that a stream which breaks can still end with a well-formed error. The extra chunk of
`include_usage` is held back when only the meter asked for it. Held by tests/unit/test_openai_events.py, which cuts at every byte.
"""

import re
from typing import Final

import msgspec

from services.api_gateway.fields import UNREADABLE

# An event longer than this is passed on in pieces: nothing is gathered without bound.
EVENT_BYTES_MAX: Final = 4 << 20
DONE: Final = b"[DONE]"
# Of one request; whoever says more, client or replica, is taken to have said this.
TOKENS_MAX: Final = 1 << 40
# Not the null that servers put into every other chunk once usage is asked for.
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')


class Usage(msgspec.Struct):
    """Tokens, as the replica counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0

    @property
    def tokens(self) -> int:
        return min(TOKENS_MAX, max(0, self.total_tokens, self.prompt_tokens + self.completion_tokens))


class _Answer(msgspec.Struct):
    usage: Usage | None = None


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] = []
    usage: Usage | None = None


_answer: Final = msgspec.json.Decoder(_Answer)
_chunk: Final = msgspec.json.Decoder(_Chunk)


def usage_of(body: bytes) -> Usage | None:
    """Of an answer in one piece; None when it says nothing that can be read."""
    try:
        return _answer.decode(body).usage
    except UNREADABLE:
        return None


class Events:
    """`counts`: look for the usage. `strips`: also hold back the chunk that has nothing else. `done` once [DONE] was seen."""

    def __init__(self, counts: bool = False, strips: bool = False) -> None:
        self.counts = counts
        self.strips = strips
        self.done = False
        self.usage: Usage | None = None
        self._rest = b""

    def feed(self, piece: bytes) -> bytes:
        """All events that are whole by now, as the client shall see them."""
        data = self._rest + piece if self._rest else piece
        end = _last_end(data)
        if end == 0 and len(data) > EVENT_BYTES_MAX:
            end = len(data)
        self._rest = data[end:]
        whole = data[:end] if self._rest else data
        self.done = self.done or _says_done(whole)
        return self._counted(whole) if self.counts and _USAGE.search(whole) else whole

    def flush(self) -> bytes:
        """What is left at a clean end of the stream: an event whose blank line never came."""
        rest, self._rest = self._rest, b""
        self.done = self.done or _says_done(rest)
        return self._counted(rest) if self.counts and _USAGE.search(rest) else rest

    def _counted(self, whole: bytes) -> bytes:
        return b"".join([event for event in _split(whole) if not (self._count(event) and self.strips)])

    def _count(self, event: bytes) -> bool:
        """Take the usage of one event; true if the event has nothing else."""
        if not _USAGE.search(event):
            return False
        try:
            chunk = _chunk.decode(_data(event))
        except UNREADABLE:
            return False
        self.usage = chunk.usage or self.usage
        return chunk.usage is not None and not chunk.choices


def _says_done(whole: bytes) -> bool:
    """[DONE] is a line's whole data; within a JSON text no line can begin."""
    at = whole.rfind(DONE)
    return at >= 0 and whole[whole.rfind(b"\n", 0, at) + 1 : at].strip() == b"data:"


def _last_end(data: bytes) -> int:
    """Behind the last blank line; 0 if there is none."""
    found, found_with_return = data.rfind(b"\n\n"), data.rfind(b"\n\r\n")
    return found + 2 if found > found_with_return else found_with_return + 3 if found_with_return >= 0 else 0


def _split(whole: bytes) -> list[bytes]:
    """The events, each with its blank line."""
    found, event = [], b""
    for line in whole.splitlines(keepends=True):
        event += line
        if not line.strip(b"\r\n"):
            found.append(event)
            event = b""
    return [*found, event] if event else found


def _data(event: bytes) -> bytes:
    """The event's data lines, joined."""
    return b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
