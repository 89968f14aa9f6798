"""The body of a request to trace."""

import pytest

from libs.common.errors import Refused
from services.api_gateway.intents.trace_intents import TraceBody, trace_request


def test_an_empty_body_traces_all_ranks_for_ten_seconds() -> None:
    assert trace_request({}) == TraceBody(duration_s=10, ranks=[], stacks=False)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ([], "not a JSON object"),
        ({"duration": 1}, "did you mean 'duration_s'"),
        ({"duration_s": 0}, "give 1 to 60"),
        ({"duration_s": "1"}, "duration_s"),
        ({"ranks": [-1]}, "ranks: -1 is out of bounds"),
        ({"ranks": [0] * 5_000}, "too many"),
    ],
)
def test_what_is_not_valid_is_refused_by_name(body: object, says: str) -> None:
    with pytest.raises(Refused, match=says):
        trace_request(body)
