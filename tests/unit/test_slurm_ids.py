"""Job ids in the two forms that scripts meet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.cli.slurm.ids import DIGITS, LENGTHS, dependencies_of, id_of, number_of

ids = st.sampled_from(LENGTHS).flatmap(
    lambda length: st.text(DIGITS, min_size=length, max_size=length).map("j{}".format)
)


@given(ids, st.sampled_from(["", "_7", "_[0-9%2]"]))
def test_a_number_stands_for_exactly_one_id(job_id: str, element: str) -> None:
    number = number_of(job_id + element)
    assert number.removesuffix(element).isdigit()
    assert id_of(number) == job_id + element


@pytest.mark.parametrize(
    "text", ["train", "chat-1", "2024", "17", "jABC", "j" + "a" * 17, "1" * 16, "1"]
)
def test_a_name_is_left_as_it_is(text: str) -> None:
    assert id_of(text) == text and number_of(text) == text


def test_a_step_means_its_job() -> None:
    assert id_of("jabc.batch") == "jabc" and id_of("jabc.0") == "jabc"


def test_dependencies_name_jobs_in_either_form() -> None:
    number = number_of("jabcdefghij")
    found = dependencies_of(f"afterok:{number}:train,singleton")
    assert found == "afterok:jabcdefghij:train,singleton"
