"""Outcomes of model requests while processes are killed, and the outcomes that are allowed.

A request is *whole* when its answer is, word for word, the answer to its own text. It is *refused*
when a gateway answers 503 because it sent the request to no replica. After a refusal, when no
connection came about, and when the connection broke, the client tries the other gateway, so none of
these is an end. Every other end, and every broken connection, needs its reason:

* *ended*: a stream that had begun and reports in its last event that it broke. A replica of that
  model had just been killed.
* *cut*: the connection closed without such an event. That very gateway had just been killed.
* *failed*: any other error. No reason is allowed: a model always had another replica, and a gateway
  sends a request to that one if it fails before the client received anything.
* *wrong*: another text, or a malformed answer. No reason is allowed.

The functions are pure. `test_model_checks.py` plants a fault for each rule.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

WHOLE, REFUSED, ENDED, CUT, FAILED, WRONG, LATE = (
    "whole",
    "refused",
    "ended",
    "cut",
    "failed",
    "wrong",
    "late",
)
# Longest time from a kill until a client sees it. Processors are shared here, and a socket closes
# only when the kernel has ended its process.
SOON_NS: Final = 5_000_000_000
DONE: Final = "data: [DONE]"
# Characters that are shown of an answer that has no error of OpenAI's shape.
SHOWN_CHARS: Final = 60


class Heard(NamedTuple):
    """The received answer; `cut` if the connection closed before it was complete."""

    status: int
    text: str
    cut: bool


class Outcome(NamedTuple):
    """The end of a request; `gateway` is the last process that had it."""

    text: str
    model: str
    gateway: str
    end: str
    at_ns: int
    detail: str


class Kill(NamedTuple):
    """`name` is a process of the launcher's, or the model whose replica it was."""

    name: str
    at_ns: int


def judge(expected: str, stream: bool, heard: Heard) -> str:
    """Classify the end of a request."""
    if heard.cut:
        return CUT if not stream or expected.startswith(_said(heard.text)[0]) else WRONG
    if heard.status != 200:
        return WRONG if not _is_error(heard.text) else REFUSED if heard.status == 503 else FAILED
    return _judge_stream(expected, heard.text) if stream else _judge_whole(expected, heard.text)


def _judge_whole(expected: str, text: str) -> str:
    try:
        found = json.loads(text)
        return (
            WHOLE
            if [choice["message"]["content"] for choice in found["choices"]] == [expected]
            else WRONG
        )
    except (ValueError, KeyError, TypeError):
        return WRONG


def _judge_stream(expected: str, text: str) -> str:
    said, last = _said(text)
    if said == expected and text.endswith(f"{DONE}\n\n") and text.count(DONE) == 1:
        return WHOLE
    return ENDED if expected.startswith(said) and DONE not in text and _is_error(last) else WRONG


def _said(text: str) -> tuple[str, str]:
    """The words of all whole events, and the last event's data."""
    events = [line.removeprefix("data: ") for line in text.split("\n\n")[:-1]]
    said = "".join(_delta(event) for event in events if event != "[DONE]")
    return said, events[-1] if events else ""


def _delta(event: str) -> str:
    try:
        choices: list[dict[str, Any]] = json.loads(event).get("choices", [])
        return "".join(choice["delta"].get("content", "") for choice in choices)
    except (ValueError, KeyError, AttributeError):
        return f"<no event: {event[:80]}>"


def _is_error(text: str) -> bool:
    """OpenAI's shape."""
    try:
        return set(json.loads(text)["error"]) == {"message", "type", "param", "code"}
    except (ValueError, KeyError, TypeError):
        return False


def reason_of(text: str) -> str:
    """Return the code of the error that ends an answer; the text if it has none."""
    last = text.rstrip().rsplit("data: ", 1)[-1]
    try:
        return str(json.loads(last)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return text[:SHOWN_CHARS]


def reasons(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Return how many requests ended without a whole answer, by end and reason."""
    return Counter(
        f"{each.end}: {reason_of(each.detail)}" for each in outcomes if each.end != WHOLE
    )


def every_end_has_its_reason(outcomes: Iterable[Outcome], kills: Sequence[Kill]) -> list[str]:
    return [_sentence(each) for each in outcomes if not _has_reason(each, kills)]


def _has_reason(outcome: Outcome, kills: Sequence[Kill]) -> bool:
    if outcome.end == WHOLE:
        return True
    blamed = {ENDED: outcome.model, CUT: outcome.gateway}.get(outcome.end)
    return any(kill.name == blamed and 0 <= outcome.at_ns - kill.at_ns <= SOON_NS for kill in kills)


def _sentence(outcome: Outcome) -> str:
    return (
        f"{outcome.text!r} to {outcome.model} by {outcome.gateway} is {outcome.end}: "
        f"{outcome.detail[-300:]}"
    )


def every_model_was_asked(
    outcomes: Iterable[Outcome], models: Iterable[str], gateways: Iterable[str]
) -> list[str]:
    """Each gateway answered for each model; otherwise the run has shown nothing."""
    answered = {(each.model, each.gateway) for each in outcomes if each.end == WHOLE}
    return [
        f"{gateway} answered nothing of {model}"
        for model in models
        for gateway in gateways
        if (model, gateway) not in answered
    ]


def every_model_is_whole_again(
    deployments: Mapping[str, Mapping[str, Any]], replicas: int
) -> list[str]:
    ready = {
        name: sum(bool(each["ready"]) for each in shown["replicas"])
        for name, shown in deployments.items()
    }
    return [
        f"{name} is {shown['state']} with {ready[name]} of {replicas} replicas ready"
        for name, shown in deployments.items()
        if ready[name] != replicas or shown["state"] != "ready"
    ]
