"""Requests for short arrays: accepted, or refused where the elements could not run as asked."""

from typing import Any

import pytest

from libs.common.errors import Refused
from libs.common.model import JobId, JobSpec
from services.api_gateway.intents.job_intents import submission


def spec(**fields: Any) -> JobSpec:
    body = {"command": ["true"], "gpus": 0, "cpus": 1, **fields}
    return submission(body, JobId("j")).spec


def test_a_short_array_is_an_array_with_a_mark() -> None:
    array = spec(array="0-99%4", short=True).array
    assert array is not None and array.short and array.at_once == 4
    ordinary = spec(array="0-99%4", short=False).array
    assert ordinary is not None and not ordinary.short
    assert spec(short=False).array is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"short": True}, "short: the job is not an array: give array"),
        ({"short": 5, "array": "0-9"}, "short: 5 is not true or false"),
        ({"nodes": 2, "short": True, "array": "0-9"}, "leave out nodes, or leave out short"),
        ({"image": "python:3", "short": True, "array": "0-9"}, "leave out image"),
        ({"retries": 2, "short": True, "array": "0-9"}, "leave out retries"),
        ({"hang_timeout": "1h", "short": True, "array": "0-9"}, "leave out hang_timeout"),
    ],
)
def test_what_a_short_array_cannot_do_is_refused(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(Refused, match=expected):
        spec(**fields)
