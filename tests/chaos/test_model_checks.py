"""Each rule of `model_checks.py` finds the fault that is planted for it, and stays quiet without
one.
"""

import json
from typing import Any

import pytest

from tests.chaos.model_checks import (
    CUT,
    ENDED,
    FAILED,
    REFUSED,
    SOON_NS,
    WHOLE,
    WRONG,
    Heard,
    Kill,
    Outcome,
    every_end_has_its_reason,
    every_model_is_whole_again,
    every_model_was_asked,
    judge,
    reason_of,
    reasons,
)

RIGHT = "You said: a b"
ERROR = json.dumps(
    {"error": {"message": "m", "type": "t", "param": None, "code": "upstream_error"}}
)


def event(words: str) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": words}}]}) + "\n\n"


def whole(words: str) -> str:
    return json.dumps({"choices": [{"message": {"content": words}}]})


DONE = "data: [DONE]\n\n"
SAID = event("You said:") + event(" a b")


@pytest.mark.parametrize(
    ("stream", "heard", "end"),
    [
        (False, Heard(200, whole(RIGHT), False), WHOLE),
        (False, Heard(200, whole("You said: c d"), False), WRONG),
        (False, Heard(200, whole(RIGHT) + whole(RIGHT), False), WRONG),
        (False, Heard(200, "", True), CUT),
        (False, Heard(503, ERROR, False), REFUSED),
        (False, Heard(502, ERROR, False), FAILED),
        (False, Heard(502, "Bad Gateway", False), WRONG),
        (True, Heard(200, SAID + DONE, False), WHOLE),
        (True, Heard(200, SAID, False), WRONG),
        (True, Heard(200, SAID + DONE + DONE, False), WRONG),
        (True, Heard(200, SAID + SAID + DONE, False), WRONG),
        (True, Heard(200, event("You said:") + f"data: {ERROR}\n\n", False), ENDED),
        (True, Heard(200, event("They said:") + f"data: {ERROR}\n\n", False), WRONG),
        (True, Heard(200, event("You said:") + 'data: {"half', True), CUT),
        (True, Heard(200, event("They said:") + 'data: {"half', True), WRONG),
    ],
)
def test_an_answer_is_judged_by_its_own_request(stream: bool, heard: Heard, end: str) -> None:
    assert judge(RIGHT, stream, heard) == end


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (ERROR, "upstream_error"),
        (event("You said:") + f"data: {ERROR}\n\n", "upstream_error"),
        ("no connection", "no connection"),
        ("", ""),
        (DONE, DONE),
    ],
)
def test_the_reason_of_an_end_is_the_code_of_its_error(text: str, reason: str) -> None:
    assert reason_of(text) == reason


def test_ends_are_counted_by_their_reason() -> None:
    ended = [outcome(end)._replace(detail=ERROR) for end in (WHOLE, ENDED, ENDED, FAILED)]
    assert reasons(ended) == {"ended: upstream_error": 2, "failed: upstream_error": 1}


def outcome(end: str, at_ns: int = SOON_NS) -> Outcome:
    return Outcome(text="a b", model="red", gateway="gateway", end=end, at_ns=at_ns, detail="")


@pytest.mark.parametrize(
    ("end", "kills", "wrong"),
    [
        (WHOLE, [], 0),
        (ENDED, [Kill("red", 1)], 0),
        (ENDED, [Kill("blue", 1), Kill("gateway", 1), Kill("scheduler", 1)], 1),
        (ENDED, [Kill("red", -1)], 1),
        (CUT, [Kill("gateway", 1)], 0),
        (CUT, [Kill("red", 1), Kill("gateway-b", 1)], 1),
        (CUT, [Kill("gateway", SOON_NS + 1)], 1),
        (FAILED, [Kill("red", 1), Kill("gateway", 1)], 1),
        (WRONG, [Kill("red", 1), Kill("gateway", 1)], 1),
        ("late", [Kill("red", 1)], 1),
    ],
)
def test_every_end_but_a_whole_answer_needs_its_own_reason(
    end: str, kills: list[Kill], wrong: int
) -> None:
    assert len(every_end_has_its_reason([outcome(end)], kills)) == wrong


def test_a_gateway_that_answered_nothing_is_found() -> None:
    assert every_model_was_asked([outcome(WHOLE)], ["red"], ["gateway"]) == []
    assert every_model_was_asked(
        [outcome(WHOLE), outcome(CUT)], ["red"], ["gateway", "gateway-b"]
    ) == ["gateway-b answered nothing of red"]


def test_a_model_that_lacks_a_replica_is_found() -> None:
    def shown(state: str, ready: int) -> dict[str, Any]:
        return {
            "red": {"state": state, "replicas": [{"ready": number < ready} for number in range(2)]}
        }

    assert every_model_is_whole_again(shown("ready", 2), 2) == []
    assert len(every_model_is_whole_again(shown("ready", 1), 2)) == 1
    assert len(every_model_is_whole_again(shown("degraded", 2), 2)) == 1
