"""Joins the bodies of several requests into one, and divides its answer again.

Pure. Requests may be joined if they differ in nothing but their inputs. Every request gets an
answer of its own, with its own inputs' results in their order, counted from 0, and its own part of
the usage. Only fields that are about no input are repeated in each answer. Tests:
tests/unit/test_openai_batch_bodies.py.
"""

from functools import lru_cache
from types import GenericAlias
from typing import Any, Final, NamedTuple

import msgspec

from services.api_gateway.intents.fields import UNREADABLE
from services.api_gateway.openai.events import TOKENS_MAX, Usage
from services.api_gateway.openai.request import fields_of
from services.api_gateway.openai.routes import COMPLETIONS, EMBEDDINGS
from services.api_gateway.serving.batching import parts

# The field with a request's inputs, and the list of results in its answer.
LISTS: Final = {EMBEDDINGS: ("input", "data"), COMPLETIONS: ("prompt", "choices")}
# Fields of an answer that are repeated in each part.
REPEATED: Final = ("id", "object", "created", "model", "system_fingerprint")
# Counts that are in each usage; embeddings have no completion tokens.
SHOWN: Final = ("prompt_tokens", "total_tokens")

# Bounds of what is joined and divided, because many small values need much more memory than their
# JSON: fields of a request, results of an answer, and names in it.
FIELDS_MAX: Final = 64
RESULTS_MAX: Final = 8_192
NAMES_MAX: Final = 1 << 20

_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw])
_usage: Final = msgspec.json.Decoder(Usage)


class Inputs(NamedTuple):
    """The inputs of one request as JSON, and all its other fields, which a batch has in common.

    `each` is the number of results of each input.
    """

    items: tuple[bytes, ...]
    shared: tuple[tuple[str, bytes], ...]
    each: int = 1

    @property
    def size(self) -> int:
        return sum(len(item) for item in self.items)


class Part(NamedTuple):
    """One request's part of an answer."""

    body: bytes
    usage: Usage | None


def inputs_of(path: str, body: bytes, items_max: int = RESULTS_MAX) -> Inputs | None:
    """Return the inputs of a request; None if it cannot be joined with others.

    Requests with `items_max` inputs or more are not joined.
    """
    name, _ = LISTS[path]
    fields = fields_of(body)
    text = bytes(fields.pop(name, msgspec.Raw(b"null"))).strip()
    if bytes(fields.get("stream", b"")) == b"true":
        return None
    listed = _elements.decode(text) if _is_list(text) else []
    if len(listed) >= items_max or len(fields) > FIELDS_MAX:
        return None
    items = tuple(bytes(item).strip() for item in listed)
    kinds = {_kind(item) for item in items or (text,)}
    if len(kinds) > 1 or not kinds <= {"text", "tokens"} or b"" in items:
        return None
    shared = (
        *sorted((key, bytes(value)) for key, value in fields.items()),
        ("", kinds.pop().encode()),
    )
    each = fields.get("n", msgspec.Raw(b"null")) if path == COMPLETIONS else msgspec.Raw(b"null")
    return Inputs(items or (text,), shared, _count(bytes(each)))


def _is_list(text: bytes) -> bool:
    """Return whether the text is a list of inputs, and not one input that is given as tokens."""
    inner = text[1:].lstrip()
    return text.startswith(b"[") and inner[:1] in (b'"', b"[")


def _kind(item: bytes) -> str:
    if item.startswith(b'"'):
        return "text"
    is_tokens = item.startswith(b"[") and item[1:].lstrip()[:1].isdigit()
    return "tokens" if is_tokens else "other"


def _count(text: bytes) -> int:
    return max(1, int(text)) if text.isdigit() else 1


def joined(path: str, requests: list[Inputs]) -> bytes:
    """Return the body of one request with the inputs of all, in their order."""
    name, _ = LISTS[path]
    listed = b"[" + b",".join(item for each in requests for item in each.items) + b"]"
    fields = {key: msgspec.Raw(value) for key, value in requests[0].shared if key}
    return msgspec.json.encode({**fields, name: msgspec.Raw(listed)})


def divided(path: str, body: bytes, requests: list[Inputs]) -> list[Part] | None:
    """Return each request's part of the answer; None if the answer lacks a result."""
    _, name = LISTS[path]
    counts = [len(each.items) * each.each for each in requests]
    if sum(counts) > RESULTS_MAX or body.count(b":") > NAMES_MAX:
        return None
    try:
        fields = _fields.decode(body)
        results = _in_order(_results(sum(counts)).decode(fields.get(name, msgspec.Raw(b"[]"))))
        usage = _usage.decode(fields["usage"]) if "usage" in fields else None
    except UNREADABLE:
        return None
    if results is None:
        return None
    lists, at = [], 0
    for count in counts:
        lists.append(results[at : at + count])
        at += count
    repeated: dict[str, msgspec.Raw] = {key: fields[key] for key in REPEATED if key in fields}
    usages = _usages(usage, requests, lists)
    return [
        Part(_answer(repeated, name, own, part), part)
        for own, part in zip(lists, usages, strict=True)
    ]


@lru_cache(maxsize=64)
def _results(count: int) -> msgspec.json.Decoder[tuple[msgspec.Raw, ...]]:
    """Return a decoder that stops at a list with more results than this, or with fewer."""
    return msgspec.json.Decoder(GenericAlias(tuple, (msgspec.Raw,) * count))


def _in_order(results: tuple[msgspec.Raw, ...]) -> list[dict[str, msgspec.Raw]] | None:
    """Return the results by their index; None unless each place has one."""
    found: dict[int, dict[str, msgspec.Raw]] = {}
    for place, raw in enumerate(results):
        result = _fields.decode(raw)
        found[msgspec.json.decode(result.get("index", msgspec.Raw(b"%d" % place)), type=int)] = (
            result
        )
    if sorted(found) != list(range(len(results))):
        return None
    return [found[place] for place in range(len(results))]


def _usages(
    usage: Usage | None, requests: list[Inputs], lists: list[list[dict[str, msgspec.Raw]]]
) -> list[Usage | None]:
    """Return each request's part of the usage, by the bytes of its inputs and of its texts."""
    if usage is None:
        return [None] * len(requests)
    prompt = max(0, min(TOKENS_MAX, usage.prompt_tokens))
    completion = max(0, min(TOKENS_MAX, usage.completion_tokens))
    prompts = parts(prompt, [each.size for each in requests])
    texts = [1 + sum(len(result.get("text", b"")) for result in own) for own in lists]
    completions = parts(completion, texts)
    return [
        Usage(given, made, given + made) for given, made in zip(prompts, completions, strict=True)
    ]


def _answer(
    repeated: dict[str, msgspec.Raw],
    name: str,
    results: list[dict[str, msgspec.Raw]],
    usage: Usage | None,
) -> bytes:
    numbered = [{**result, "index": place} for place, result in enumerate(results)]
    answer: dict[str, Any] = {**repeated, name: numbered}
    if usage is not None:
        counts = msgspec.structs.asdict(usage)
        answer["usage"] = {key: count for key, count in counts.items() if count or key in SHOWN}
    return msgspec.json.encode(answer)
