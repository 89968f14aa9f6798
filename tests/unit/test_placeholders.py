"""The placeholders of pulled models in commands and variables."""

import pytest

from libs.common.errors import Refused
from libs.common.placeholders import PULL, pulled_in, with_pulled
from services.api_gateway.intents import pulled_fields


def test_each_pulled_model_is_found_once_in_order() -> None:
    words = ("serve", "{pulled:a/b}", "--draft={pulled:c/d@v1}", "{pulled:a/b}/x", "{pulled: }")
    assert pulled_in(words) == ["a/b", "c/d@v1"]


def test_the_longest_reference_is_found() -> None:
    name = f"{'o' * 96}/{'n' * 96}@{'r' * 128}"
    assert pulled_in([f"{{pulled:{name}}}"]) == [name]
    pulled_fields.check((f"{{pulled:{name}}}",), {}, "")


def test_a_folder_stands_where_the_placeholder_was_and_others_stay() -> None:
    paths = {"a/b": "/copies/a--b/1"}
    assert with_pulled("--model={pulled:a/b}/x", paths) == "--model=/copies/a--b/1/x"
    assert with_pulled("{pulled:c/d} {port}", paths) == "{pulled:c/d} {port}"


def test_a_job_may_name_pulled_models() -> None:
    pulled_fields.check(("serve", "{pulled:a/b}"), {"DRAFT": "{pulled:c/d@v1}"}, "image:1")
    pulled_fields.check((PULL, "a/b"), {}, "")


@pytest.mark.parametrize("name", ["", "../x", "a/b/c", "a/b@..", "/etc"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="pulled:"):
        pulled_fields.check((f"{{pulled:{name}}}",), {}, "")


def test_too_many_names_and_a_pull_with_an_image_are_refused() -> None:
    many = tuple(f"{{pulled:a/b{number}}}" for number in range(17))
    with pytest.raises(Refused, match="too many"):
        pulled_fields.check(many, {}, "")
    with pytest.raises(Refused, match="without an image"):
        pulled_fields.check((PULL, "a/b"), {}, "image:1")
