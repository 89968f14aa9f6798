"""Continues a text stream at another replica after its replica died.

Pure. The next replica gets the request with the text that the client has already: in a chat as a
last message of the assistant, which vLLM, SGLang and llama.cpp continue; in a completion at the end
of its prompt. The client sees one stream: one id, one role, one usage. Tokens are counted as one
for each event with text, because events do not tell theirs. Tests:
tests/unit/test_stream_continuation.py and tests/integration/test_openai_continuation.py.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from services.api_gateway.intents.fields import UNREADABLE
from services.api_gateway.openai.events import DONE, Usage, data_of, split
from services.api_gateway.openai.request import RequestFields, fields_of
from services.api_gateway.openai.routes import CHAT, COMPLETIONS

# Streams with more text end with an error, because the gateway holds the text of each.
TEXT_BYTES_MAX: Final = 256 << 10
LIMITS: Final = ("max_tokens", "max_completion_tokens", "min_tokens")
# A number with more digits limits nothing, and Python refuses to read very long ones.
DIGITS_MAX: Final = 18
# Fields whose effect depends on the whole answer, or that ask for more than its text.
EXCLUDED: Final = (
    *("audio", "continue_final_message", "echo", "logprobs", "modalities", "prompt_logprobs"),
    *("structured_outputs", "suffix", "top_logprobs"),
    *("grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "json_schema"),
)
# Values of fields that ask for nothing.
EMPTY: Final = (b"null", b"false", b'""', b"[]", b"{}")
NULL: Final = msgspec.Raw(b"null")
# Parts of a chat's event that a continuation keeps.
KNOWN: Final = ("role", "content")


class _Choice(msgspec.Struct):
    delta: dict[str, msgspec.Raw] | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    id: msgspec.Raw = NULL
    created: msgspec.Raw = NULL
    choices: list[_Choice] = []
    error: msgspec.Raw = NULL


class _Type(msgspec.Struct):
    type: str = ""


_chunk: Final = msgspec.json.Decoder(_Chunk)
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list: Final = msgspec.json.Decoder(list[msgspec.Raw])
_text: Final = msgspec.json.Decoder(str)
_type: Final = msgspec.json.Decoder(_Type)


def continuation_of(path: str, fields: RequestFields, body: bytes) -> "Continuation | None":
    """Return the continuation of a request; None if another replica could not continue it."""
    if path not in (CHAT, COMPLETIONS) or not fields.streams:
        return None
    if (fields.n or 1) != 1 or (fields.best_of or 1) != 1:
        return None
    given = fields_of(body)
    if any(bytes(given[name]) not in EMPTY for name in EXCLUDED if name in given):
        return None
    if not _is_free(given):
        return None
    prompt = bytes(given.get("messages" if path == CHAT else "prompt", NULL))
    if not prompt.startswith(b"[" if path == CHAT else b'"'):
        return None
    return Continuation(path, given)


class Continuation:
    """The text of one stream so far, and the requests that continue it.

    `tokens` counts the events with text that the client got. `is_second`: a later replica answers,
    and the client has events of an earlier one. `is_possible` becomes false when an event has more
    than text or reports an error, or the text is too long.
    """

    def __init__(self, path: str, given: Mapping[str, msgspec.Raw]) -> None:
        self.path = path
        self.given = given
        self.tokens = 0
        self.is_second = False
        self.is_possible = True
        self._before = 0
        self._sent = bytearray()
        self._first: _Chunk | None = None
        self._is_finished = False

    @property
    def size(self) -> int:
        """Return the bytes of the text so far."""
        return len(self._sent)

    def can_continue(self) -> bool:
        """Return whether another replica can go on where the stream broke."""
        return self.is_possible and not self._is_finished and self._limits() is not None

    def next_body(self) -> bytes:
        """Return the request for the next replica. Only after `can_continue`."""
        limits = self._limits()
        assert limits is not None, "the stream cannot be continued"
        self.is_second, self._before = self._first is not None, self.tokens
        text = self._sent.decode()
        if self.path == COMPLETIONS:
            prompt = _text.decode(self.given["prompt"]) + text
            return msgspec.json.encode({**self.given, **limits, "prompt": prompt})
        messages = _list.decode(self.given["messages"])
        if text:
            last = msgspec.json.encode({"role": "assistant", "content": text})
            messages.append(msgspec.Raw(last))
            limits["continue_final_message"] = msgspec.Raw(b"true")
            limits["add_generation_prompt"] = msgspec.Raw(b"false")
        return msgspec.json.encode({**self.given, **limits, "messages": messages})

    def passed(self, whole: bytes) -> bytes:
        """Follow whole events on their way to the client; return them as it shall get them."""
        if not self.is_second:
            for event in split(whole):
                self._follow(event)
            return whole
        return b"".join([self._changed(event) for event in split(whole)])

    def total(self, usage: Usage | None) -> Usage | None:
        """Return the usage of the whole stream, from the usage of the replica that ended it."""
        if usage is None or not self._before:
            return usage
        inputs = max(0, usage.inputs - self._before)
        outputs = usage.outputs + self._before
        return Usage(inputs, outputs, inputs + outputs)

    def _limits(self) -> dict[str, msgspec.Raw] | None:
        """Return the request's limits less what was generated; None if none is left of one."""
        left: dict[str, msgspec.Raw] = {}
        for name in LIMITS:
            value = bytes(self.given.get(name, NULL))
            if not value.isdigit() or len(value) > DIGITS_MAX:
                continue
            rest = int(value) - self.tokens
            if rest <= 0 and name != "min_tokens":
                return None
            left[name] = msgspec.Raw(b"%d" % max(0, rest))
        return left

    def _follow(self, event: bytes) -> None:
        data = data_of(event)
        if data in (b"", DONE):
            return
        try:
            chunk = _chunk.decode(data)
            for choice in chunk.choices:
                self._follow_choice(choice)
            if bytes(chunk.error) not in EMPTY:
                self.is_possible = False  # the client takes it as the end of the stream
        except UNREADABLE:
            self.is_possible = False
            return
        if self._first is None:
            self._first = chunk

    def _follow_choice(self, choice: _Choice) -> None:
        delta = choice.delta or {}
        # Some servers write an empty reason into all events.
        self._is_finished = self._is_finished or bool(choice.finish_reason)
        others = [value for name, value in delta.items() if name not in KNOWN]
        if any(bytes(value) not in EMPTY for value in others):
            self.is_possible = False
        self._add(choice.text or _content(delta))

    def _add(self, text: str) -> None:
        if not text:
            return
        self.tokens += 1
        self._sent += text.encode()
        if len(self._sent) > TEXT_BYTES_MAX:
            self.is_possible = False
            self._sent.clear()

    def _changed(self, event: bytes) -> bytes:
        """Return a later replica's event as a part of the first one's stream."""
        self._follow(event)
        try:
            fields = self._joined(_fields.decode(data_of(event)))
        except UNREADABLE:
            return event
        return b"data: %s\n\n" % msgspec.json.encode(fields)

    def _joined(self, fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """Return the fields with the first stream's id, and without what it has had already."""
        if self._first is not None and "id" in fields:
            fields |= {"id": self._first.id, "created": self._first.created}
        if bytes(fields.get("usage", NULL)) not in EMPTY:
            fields["usage"] = self._summed(fields["usage"])
        if "choices" in fields:
            choices = [_roleless(each) for each in _list.decode(fields["choices"])]
            fields["choices"] = msgspec.Raw(msgspec.json.encode(choices))
        return fields

    def _summed(self, given: msgspec.Raw) -> msgspec.Raw:
        usage = self.total(msgspec.json.decode(given, type=Usage))
        assert usage is not None
        counts = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        }
        return msgspec.Raw(msgspec.json.encode({**_fields.decode(given), **counts}))


def _is_free(given: Mapping[str, msgspec.Raw]) -> bool:
    """Return whether the format of the answer is free: no schema, no forced call of a tool."""
    shape = bytes(given.get("response_format", NULL))
    if shape not in EMPTY and not _is_text(shape):
        return False
    chosen = bytes(given.get("tool_choice", NULL))
    return chosen in EMPTY or chosen in (b'"auto"', b'"none"')


def _is_text(shape: bytes) -> bool:
    try:
        return _type.decode(shape).type == "text"
    except UNREADABLE:
        return False


def _content(delta: Mapping[str, msgspec.Raw]) -> str:
    value = bytes(delta.get("content", NULL))
    return _text.decode(value) if value.startswith(b'"') else ""


def _roleless(choice: msgspec.Raw) -> msgspec.Raw:
    """Return a choice whose delta has no role: clients join the roles of all events."""
    fields = _fields.decode(choice)
    if "delta" not in fields:
        return choice
    delta = _fields.decode(fields["delta"])
    delta.pop("role", None)
    return msgspec.Raw(
        msgspec.json.encode({**fields, "delta": msgspec.Raw(msgspec.json.encode(delta))})
    )
