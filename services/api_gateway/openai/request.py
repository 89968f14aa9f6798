"""Reads a request's fields that the gateway acts on, and makes the few changes that its body may
need.

Pure. Only the fields that the gateway acts on are read; all others are skipped, unknown ones too,
and their bytes go on as they came. Tests: tests/unit/test_openai_request.py.
"""

import re
from typing import Final

import msgspec

from services.api_gateway.intents.fields import UNREADABLE, fault_of
from services.api_gateway.openai.errors import ApiError
from services.api_gateway.openai.events import TOKENS_MAX
from services.api_gateway.openai.images import images_of
from services.api_gateway.openai.routes import CHAT, COMPLETIONS, RESPONSES, ROUTES

# Prompts with more commas are counted approximately, because counting would delay other requests.
COUNTED_MAX: Final = 100_000


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class RequestFields(msgspec.Struct):
    """The fields that the gateway acts on."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    prompt: msgspec.Raw = msgspec.Raw(b"null")
    messages: msgspec.Raw = msgspec.Raw(b"null")
    tools: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()

    @property
    def streams(self) -> bool:
        return self.stream is True

    @property
    def usage_asked(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage is True

    def limits(self, path: str) -> list[int]:
        """Return the limits of the answer's tokens that the servers of this route act on."""
        found = [getattr(self, name) for name in ROUTES[path].bounds]
        return [limit for limit in found if limit is not None]

    def is_bounded(self, path: str) -> bool:
        """Return whether the request limits the tokens of its answer.

        A negative limit means no limit to some servers.
        """
        limits = self.limits(path)
        return bool(limits) and min(limits) >= 0

    def longest(self, path: str) -> int | None:
        """Return the largest limit of the answer's tokens.

        Return None if there is none, or if a server may read one as no limit, as some read 0.
        """
        limits = self.limits(path)
        return max(limits) if limits and min(limits) > 0 else None

    def text(self, path: str) -> bytes:
        """Return the JSON text of the prompt, in the order in which model servers read it.

        It is empty for a request without one of these fields.
        """
        if path == CHAT:
            return bytes(self.tools) + bytes(self.messages)
        if path == RESPONSES:
            return bytes(self.instructions) + bytes(self.tools) + bytes(self.input)
        return bytes(self.prompt) if path == COMPLETIONS else bytes(self.input)


_request_fields: Final = msgspec.json.Decoder(RequestFields)
# A list that begins with a number is one prompt, given as tokens.
_LIST: Final = re.compile(rb"\[\s*[^\s\d-]")
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw])
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read(body: bytes) -> RequestFields:
    """Return the fields. Raises ApiError 400 naming the wrong field, if there is one."""
    try:
        return _request_fields.decode(body)
    except msgspec.ValidationError as error:
        field, reason = fault_of(error)
        if (field, reason) == ("model", "missing"):
            reason += ": give the name of a model (GET /v1/models lists them)"
        raise ApiError(400, f"{field or 'the body'}: {reason}", param=field or None) from error
    except UNREADABLE as error:
        raise ApiError(
            400, f"the body is not a JSON object ({error}): send one with the field 'model'"
        ) from error


def worst_case_tokens(fields: RequestFields, body: bytes, path: str, unbounded_tokens: int) -> int:
    """Return an upper bound of the tokens that the request can use.

    A token of text is at least one byte of the body. An image counts by its size. If the request
    does not limit its answer, `unbounded_tokens` is added, and `with_bound` then limits the answer
    to that.
    """
    images = images_of(bytes(fields.messages))
    asked = len(body) - images.body_bytes + images.tokens
    if not ROUTES[path].bound:
        return min(TOKENS_MAX, asked)
    longest = fields.longest(path) or unbounded_tokens
    answers = max(1, fields.n or 1, fields.best_of or 1) * _prompts(fields)
    return min(TOKENS_MAX, asked + longest * answers)


def _prompts(fields: RequestFields) -> int:
    """Return the number of prompts. /v1/completions takes several at once, each as text or as a
    list of token numbers. For a very long list, return an upper bound.
    """
    prompt = bytes(fields.prompt)
    if not _LIST.match(prompt):
        return 1
    commas = prompt.count(b",")
    return commas + 1 if commas > COUNTED_MAX else max(1, len(_elements.decode(prompt)))


def choices_of(fields: RequestFields) -> int:
    """Return how many choices the answer has; 0 for very many, which are not counted."""
    prompts = _prompts(fields)
    return max(1, fields.n or 1) * prompts if prompts <= COUNTED_MAX else 0


def fields_of(body: bytes) -> dict[str, msgspec.Raw]:
    """Return all fields of a body. Raises ApiError 400, for example for a name not in UTF-8."""
    try:
        return _fields.decode(body)
    except UNREADABLE as error:
        raise ApiError(400, f"the request body is not valid JSON: {error}") from error


def with_usage(body: bytes) -> bytes:
    """Return the body with stream_options.include_usage; all other fields keep their bytes."""
    if (added := _added(body, b"stream_options", b'{"include_usage":true}')) is not None:
        return added
    fields = fields_of(body)
    given = fields.get("stream_options", msgspec.Raw(b"null"))
    options = fields_of(bytes(given)) if bytes(given) != b"null" else {}
    options["include_usage"] = msgspec.Raw(b"true")
    return msgspec.json.encode(
        {**fields, "stream_options": msgspec.Raw(msgspec.json.encode(options))}
    )


def with_model(body: bytes, name: str) -> bytes:
    """Return the body with another name in `model`; all other fields keep their bytes."""
    return msgspec.json.encode({**fields_of(body), "model": name})


def with_bound(body: bytes, tokens: int, path: str) -> bytes:
    """Return the body with a limit of the answer's tokens, for a request that has none and counts
    against the tenant's limit. A limit that means none is replaced.
    """
    bound, other = ROUTES[path].bound, ROUTES[path].other_bound
    if not other or b'"%b"' % other.encode() not in body:
        added = _added(body, bound.encode(), b"%d" % tokens)
        if added is not None:
            return added
    fields: dict[str, object] = {**fields_of(body), bound: tokens}
    if fields.get(other, msgspec.Raw(b"null")) != msgspec.Raw(b"null"):
        fields[other] = tokens
    return msgspec.json.encode(fields)


def _added(body: bytes, name: bytes, value: bytes) -> bytes | None:
    """Return a JSON object with one more field at its end; None if it may have the field already.

    The name could also be there with an escaped letter. Parsers differ in which of two they take.
    """
    if b'"%b"' % name in body or b"\\u" in body:
        return None
    return b'%b,"%b":%b}' % (body.rstrip().removesuffix(b"}"), name, value)
