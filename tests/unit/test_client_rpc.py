"""Messages from Python values, and typed errors from gRPC's."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from libs.client import errors
from libs.client.rpc.messages import error_from, message_of, method_of
from libs.rpc.messages import message

SUBMIT = message("SubmitJobRequest").DESCRIPTOR


class Failed(grpc.RpcError):
    """A failed call, as grpcio gives it."""

    def __init__(self, code: grpc.StatusCode, text: str = "", **metadata: str) -> None:
        super().__init__()
        self._code, self._text = code, text
        self._metadata = [(name.replace("_", "-"), value) for name, value in metadata.items()]

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._text

    def trailing_metadata(self) -> list[tuple[str, str]]:
        return self._metadata


def test_values_take_the_form_of_their_fields() -> None:
    found: Any = message_of(
        SUBMIT,
        {
            "command": ("a", Path("b"), 3),
            "grace_s": 90,
            "node_list": "n1",
            "gpus": 2,
            "env": {"A": "b"},
            "workdir": Path("/a"),
            "name": None,
            "container": {"user": "1000"},
        },
    )
    assert list(found.command) == ["a", "b", "3"]
    assert (found.grace_s, list(found.node_list), found.gpus) == ("90", ["n1"], 2)
    assert (found.workdir, dict(found.env), found.container.user) == ("/a", {"A": "b"}, "1000")
    assert not found.HasField("name")


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"gpu": 1}, "gpu", "did you mean gpus"),
        ({"zzzz": 1}, "zzzz", "see proto/"),
        ({"gpus": "two"}, "gpus", "does not fit"),
        ({"hold": 5.5}, "hold", "does not fit"),
        ({"command": 5}, "command", "does not fit"),
        ({"gpus": 1 << 70}, "gpus", "does not fit"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=text) as error:
        message_of(SUBMIT, fields)
    assert error.value.field == field


@pytest.mark.parametrize("name", ["Jobs", "Jobs/Paint", "Colours/Paint", ""])
def test_an_unknown_method_is_refused(name: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="method: "):
        method_of(name)


def test_a_problem_becomes_its_typed_error() -> None:
    fault = Failed(
        grpc.StatusCode.INVALID_ARGUMENT,
        muster_status="422",
        muster_problem='{"detail": "gpus: 99 is out of bounds"}',
    )
    found = error_from(fault, "Jobs/SubmitJob", "h:9090")
    assert isinstance(found, errors.InvalidRequest) and found.field == "gpus"


@pytest.mark.parametrize(
    ("code", "text", "kind", "words"),
    [
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all", errors.Unavailable, "check the"),
        (grpc.StatusCode.UNAVAILABLE, "reset", errors.Unavailable, "may still"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", errors.Unavailable, "in time"),
        (grpc.StatusCode.UNIMPLEMENTED, "", errors.ApiError, "older"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too large", errors.ApiError, "too large"),
    ],
)
def test_a_failure_without_a_problem_has_its_type(
    code: grpc.StatusCode, text: str, kind: type[errors.ApiError], words: str
) -> None:
    found = error_from(Failed(code, text), "Jobs/GetJob", "h:9090")
    assert type(found) is kind and words in str(found)
    if isinstance(found, errors.Unavailable):
        assert found.sent is ("connect" not in text)
