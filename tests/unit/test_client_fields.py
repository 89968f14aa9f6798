"""The body of a submission from Python's arguments."""

import pytest

from libs.client import fields
from libs.client.errors import InvalidRequest


def test_a_command_is_a_list_of_words_or_a_text() -> None:
    assert fields.words(["python", "train.py", 3]) == ["python", "train.py", "3"]
    assert fields.words("python 'my file.py' $HOME") == ["python", "my file.py", "$HOME"]


@pytest.mark.parametrize("command", [b"true", 7, None, "sh -c 'open"])
def test_another_command_is_refused_by_its_field(command: object) -> None:
    with pytest.raises(InvalidRequest) as found:
        fields.words(command)
    assert found.value.field == "command"


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (None, {}),
        (0, {"gpus": 0}),
        (2.0, {"gpus": 2}),
        (0.25, {"gpus": 1, "fraction": 0.25}),
    ],
)
def test_gpus_are_whole_or_a_part_of_one(gpus: object, expected: dict[str, object]) -> None:
    assert fields.gpu_fields(gpus) == expected


@pytest.mark.parametrize("gpus", [1.5, -0.5, True, "2", float("nan"), float("inf")])
def test_other_numbers_of_gpus_are_refused_by_their_field(gpus: object) -> None:
    with pytest.raises(InvalidRequest) as found:
        fields.gpu_fields(gpus)
    assert found.value.field == "gpus"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (None, {}),
        (3, {"nodes": 3}),
        ("4", {"nodes": 4}),
        ("2..8", {"nodes": 2, "nodes_max": 8}),
    ],
)
def test_nodes_are_a_number_or_a_range(nodes: object, expected: dict[str, object]) -> None:
    assert fields.node_fields(nodes) == expected


@pytest.mark.parametrize("nodes", ["", "a", "2..", "..8", "2-8", "2..\u00b2", "\u00b2"])
def test_other_ranges_of_nodes_are_refused_by_their_field(nodes: str) -> None:
    with pytest.raises(InvalidRequest) as found:
        fields.node_fields(nodes)
    assert found.value.field == "nodes"


def test_fields_without_a_value_are_left_out() -> None:
    assert fields.job_body("true") == {"command": ["true"]}
    given = {"name": "a", "image": None, "gpus": 2, "nodes": 3}
    assert fields.job_body(["true"], given=given) == {
        "command": ["true"],
        "gpus": 2,
        "nodes": 3,
        "name": "a",
    }
    assert fields.job_body("true", gpus=1, nodes=2) == {"command": ["true"], "gpus": 1, "nodes": 2}


def test_a_stream_is_one_of_a_jobs_two() -> None:
    fields.check_stream(None)
    fields.check_stream("stderr")
    with pytest.raises(InvalidRequest, match="give one of stdout, stderr"):
        fields.check_stream("stdin")
