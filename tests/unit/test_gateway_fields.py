"""Checks of fields and names in requests: each refusal names what is wrong and what is accepted."""

import msgspec
import pytest

from libs.common.errors import Refused
from services.api_gateway.intents.fields import LISTED_MAX, check_known, convert


class _Body(msgspec.Struct):
    command: list[str]
    nodes: int = 1
    hold: bool = False


def refusal_of(values: dict[str, object]) -> str:
    with pytest.raises(Refused) as caught:
        convert(values, _Body)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"command": "true"}, "command: expected a list, got a text"),
        ({"command": [], "nodes": "2"}, "nodes: expected a whole number, got a text"),
        ({"command": [], "hold": 1}, "hold: expected true or false, got a whole number"),
        ({"command": [1]}, "command[0]: expected a text, got a whole number"),
        ({}, "command: missing"),
    ],
)
def test_a_wrong_type_is_described_in_plain_words(values: dict[str, object], text: str) -> None:
    assert refusal_of(values) == text


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(Refused, match=r"queue 'nigth' is not known: did you mean 'night'\?"):
        check_known(["nigth"], ["day", "night"], "queue")


def test_an_unknown_name_without_any_known_one_says_so() -> None:
    with pytest.raises(Refused, match="reservation 'x' does not exist, and there is no other"):
        check_known(["x"], [], "reservation")


def test_a_refusal_lists_a_bounded_number_of_names() -> None:
    with pytest.raises(Refused) as caught:
        check_known(["zzz"], [f"node-{number:05}" for number in range(10_000)], "node")
    assert str(caught.value).count("node-") == LISTED_MAX and str(caught.value).endswith(" ...")
