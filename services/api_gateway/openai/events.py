"""Cuts a stream of server-sent events into whole events, and reads the usage from them.

Pure. Only whole events go to the client, so that a broken stream can still end with a well-formed
error. The extra chunk of `include_usage` is held back if only the meter asked for it. Tests:
tests/unit/test_openai_events.py.
"""

import re
from typing import Final

import msgspec

from services.api_gateway.intents.fields import UNREADABLE

# A longer event is passed on in pieces, so that memory is bounded.
EVENT_BYTES_MAX: Final = 4 << 20
DONE: Final = b"[DONE]"
# The most tokens of one request; a higher number of a client or replica counts as this.
TOKENS_MAX: Final = 1 << 40
# A usage object. With include_usage, servers put `"usage": null` into all other chunks.
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
# Within a JSON string the quotation marks are escaped, so no generated text matches.
# Some servers write an empty reason into all events.
_FINISH: Final = re.compile(rb'"finish_reason"\s*:\s*"[^"]')
BLANK: Final = b"\n\n"
# The longest end of a line and a blank line: \n\r\n.
BLANK_BYTES_MAX: Final = 3
DONE_EVENT: Final = b"data: [DONE]\n\n"


class Usage(msgspec.Struct):
    """Tokens as the replica counted them.

    Newer endpoints have `input_tokens` and `output_tokens`, others only a total.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def outputs(self) -> int:
        return min(TOKENS_MAX, max(0, self.completion_tokens, self.output_tokens))

    @property
    def inputs(self) -> int:
        given = max(0, self.prompt_tokens, self.input_tokens)
        return min(TOKENS_MAX, given or max(0, self.total_tokens - self.outputs))

    @property
    def tokens(self) -> int:
        return min(TOKENS_MAX, max(self.total_tokens, self.inputs + self.outputs))

    def at_most(self, most: int) -> "Usage":
        """Return this usage, or one of `most` tokens if it has more."""
        if self.tokens <= most:
            return self
        inputs = min(self.inputs, most)
        outputs = min(self.outputs, most - inputs)
        return Usage(inputs, outputs, total_tokens=most)


class _Answer(msgspec.Struct):
    usage: Usage | None = None


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] = []
    usage: Usage | None = None
    response: _Answer | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    finish_reason: str | None = None


class _Choices(msgspec.Struct):
    choices: list[_Choice] = []


_answer: Final = msgspec.json.Decoder(_Answer)
_choices: Final = msgspec.json.Decoder(_Choices)
_chunk: Final = msgspec.json.Decoder(_Chunk)


def usage_of(body: bytes) -> Usage | None:
    """Return the usage of an answer that is not a stream; None if the answer cannot be parsed."""
    try:
        return _answer.decode(body).usage
    except UNREADABLE:
        return None


class Events:
    """The events of one stream.

    `counts`: read the usage. `strips`: also hold back a chunk that has nothing but usage.
    `choices` is the number of choices in the answer; 0 stands for several, however many begin.
    `done` is true after [DONE], `finished` after every choice has its finish_reason. With `ends`
    the event that it matches is the end instead.
    """

    def __init__(
        self,
        counts: bool = False,
        strips: bool = False,
        choices: int = 1,
        ends: re.Pattern[bytes] | None = None,
    ) -> None:
        self.counts = counts
        self.strips = strips
        self.choices = choices
        self.ends = ends
        self.done = False
        self.finished = False
        self._seen: set[int] = set()
        self._ended: set[int] = set()
        self.usage: Usage | None = None
        self._rest = bytearray()
        self._is_split = False

    @property
    def waiting(self) -> int:
        """Return the bytes of the event that is not whole yet."""
        return len(self._rest)

    def feed(self, piece: bytes) -> bytes:
        """Add bytes of the stream. Return all events that are complete by now, as the client shall
        get them.
        """
        whole = self._cut(piece)
        self._follow(whole)
        return self._counted(whole) if self.counts and _USAGE.search(whole) else whole

    def _cut(self, piece: bytes) -> bytes:
        """Return the bytes up to the end of the last whole event, and keep the rest.

        Each byte is copied and searched once, however small the pieces of a long event are.
        """
        rest = self._rest
        if not rest and _last_end(piece) == len(piece):
            self._is_split = False
            return piece
        begin = max(0, len(rest) - BLANK_BYTES_MAX + 1)
        rest += piece
        end = _last_end(rest, begin)
        if end:
            self._is_split = False
        elif len(rest) > EVENT_BYTES_MAX:
            self._is_split = True
            end = len(rest)
        whole = bytes(rest[:end])
        del rest[:end]
        return whole

    def flush(self, is_error: bool = False) -> bytes:
        """Return the last event if the stream ended cleanly without its blank line.

        The blank line is added. Half an event is dropped, because clients could not parse it. Of
        an answer with an error every text stays.
        """
        rest, self._rest = bytes(self._rest), bytearray()
        if self._is_split:
            return rest.rstrip(b"\r\n") + BLANK
        if not rest.strip() or not (is_error or _is_whole(rest)):
            return b""
        self._follow(rest)
        rest = self._counted(rest) if self.counts and _USAGE.search(rest) else rest
        return rest.rstrip(b"\r\n") + BLANK if rest else b""

    def _follow(self, whole: bytes) -> None:
        """Note whether [DONE] and every finish_reason have come."""
        self.done = self.done or _has_done(whole)
        if self.ends is not None:
            self.finished = self.finished or self.ends.search(whole) is not None
            self.done = self.done or self.finished
            return
        if self.choices == 1:
            self.finished = self.finished or _FINISH.search(whole) is not None
            return
        for event in split(whole):
            self._follow_choices(event)
        self.finished = len(self._ended) >= max(1, self.choices) and self._ended >= self._seen

    def _follow_choices(self, event: bytes) -> None:
        try:
            choices = _choices.decode(data_of(event)).choices
        except UNREADABLE:
            return
        self._seen.update(choice.index for choice in choices)
        self._ended.update(choice.index for choice in choices if choice.finish_reason)

    def _counted(self, whole: bytes) -> bytes:
        """Take the usage of the events, and return those that the client shall get."""
        if b"\r" in whole:
            events = split(whole)
            return b"".join([event for event in events if not (self._count(event) and self.strips)])
        kept, at = [], 0
        for found in _USAGE.finditer(whole):
            if found.start() < at:
                continue  # the same event names it twice
            before, after = whole.rfind(BLANK, at, found.start()), whole.find(BLANK, found.end())
            begin = at if before < 0 else before + len(BLANK)
            end = len(whole) if after < 0 else after + len(BLANK)
            if self._count(whole[begin:end]) and self.strips:
                kept.append(whole[at:begin])
            else:
                kept.append(whole[at:end])
            at = end
        return b"".join(kept) + whole[at:]

    def _count(self, event: bytes) -> bool:
        """Take the usage of one event. Return True if the event contains nothing else."""
        if not _USAGE.search(event):
            return False
        try:
            chunk = _chunk.decode(data_of(event))
        except UNREADABLE:
            return False
        nested = chunk.response.usage if chunk.response is not None else None
        self.usage = chunk.usage or nested or self.usage
        return chunk.usage is not None and not chunk.choices


def _is_whole(rest: bytes) -> bool:
    """Return whether an event without its blank line has all its data: JSON, or [DONE]."""
    data = data_of(rest) or rest
    if data == DONE:
        return True
    try:
        msgspec.json.decode(data)
    except UNREADABLE:
        return False
    return True


def _has_done(whole: bytes) -> bool:
    """Return whether a data line consists of [DONE] alone. In JSON text a line break is escaped, so
    the text cannot begin a line.
    """
    at = whole.rfind(DONE)
    return at >= 0 and whole[whole.rfind(b"\n", 0, at) + 1 : at].strip() == b"data:"


def _last_end(data: bytes | bytearray, begin: int = 0) -> int:
    """Return the position after the last blank line behind `begin`; 0 if there is none."""
    found, found_with_return = data.rfind(b"\n\n", begin), data.rfind(b"\n\r\n", begin)
    return (
        found + 2
        if found > found_with_return
        else found_with_return + 3
        if found_with_return >= 0
        else 0
    )


def split(whole: bytes) -> list[bytes]:
    """Return the events, each with its blank line."""
    found, event = [], b""
    for line in whole.splitlines(keepends=True):
        event += line
        if not line.strip(b"\r\n"):
            found.append(event)
            event = b""
    return [*found, event] if event else found


def data_of(event: bytes) -> bytes:
    """Return the event's data lines, joined."""
    return b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
