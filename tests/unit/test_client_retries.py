"""When a request is repeated: never if it could be carried out twice with two effects."""

import math

import pytest

from libs.client.calls import Call
from libs.client.errors import (
    ApiError,
    Conflict,
    InvalidRequest,
    NotFound,
    RateLimited,
    Unavailable,
)
from libs.client.retries import PAUSE_FIRST_S, PAUSE_MAX_S, Retries
from libs.client.timing import (
    AGAIN_MAX_S,
    POLL_BUSY_S,
    POLL_MIN_S,
    POLL_S,
    Patience,
    check_bounds,
    poll_s,
)

ONCE = Call("POST", "/v1/jobs")
AGAIN = Call("POST", "/v1/jobs", repeatable=True)
WITHIN_S = 10.0


def pause(call: Call, error: ApiError, now_s: float = 0.0, random: float = 1.0) -> float | None:
    return Retries(call, WITHIN_S, 0.0).pause_s(error, now_s, random)


@pytest.mark.parametrize(
    ("call", "error", "repeated"),
    [
        (AGAIN, Unavailable("away", 503), True),
        (AGAIN, Unavailable("broke"), True),
        (ONCE, Unavailable("away", 503), False),
        (ONCE, Unavailable("broke"), False),
        (ONCE, Unavailable("no connection", sent=False), True),
        (ONCE, RateLimited("slow down", 429), True),
        (AGAIN, Unavailable("the log is nearly full", 507), False),
        (AGAIN, NotFound("no such job", 404), False),
        (AGAIN, Conflict("it has ended", 409), False),
        (AGAIN, ApiError("a bug", 500), False),
    ],
)
def test_a_request_is_repeated_only_if_that_changes_nothing(
    call: Call, error: ApiError, repeated: bool
) -> None:
    assert (pause(call, error) is not None) == repeated


def test_pauses_grow_to_their_bound_and_are_spread() -> None:
    retries = Retries(AGAIN, 1_000.0, 0.0)
    found = [retries.pause_s(Unavailable("away"), 0.0, 1.0) for _ in range(8)]
    assert found[0] == PAUSE_FIRST_S and found[-1] == PAUSE_MAX_S
    assert pause(AGAIN, Unavailable("away"), random=0.0) == PAUSE_FIRST_S / 2


def test_the_pause_that_the_gateway_asks_for_is_kept() -> None:
    assert pause(ONCE, RateLimited("slow down", 429, {"retry_after_s": 3})) == 3
    assert pause(AGAIN, Unavailable("full", 503, {"retry_after_s": 4})) == 4


def test_no_pause_goes_beyond_the_time_for_tries() -> None:
    assert pause(AGAIN, Unavailable("away"), now_s=WITHIN_S) is None
    assert pause(ONCE, RateLimited("slow down", 429, {"retry_after_s": 11})) is None


def test_a_follower_waits_for_its_gateway_until_its_time_is_over() -> None:
    patience = Patience(5.0)
    assert [patience.pause_s(100.0) for _ in range(2)] == [0.1, 0.2]
    assert patience.pause_s(105.1) is None
    patience.reset()
    assert patience.pause_s(200.0) == 0.1
    for _ in range(9):
        last = patience.pause_s(200.0)
    assert last == AGAIN_MAX_S
    assert patience.pause_s(200.0, asked_s=9.0) == 9.0


@pytest.mark.parametrize(
    ("field", "bounds"),
    [
        ("timeout_s", (0.0, 1.0, 1)),
        ("timeout_s", (math.nan, 1.0, 1)),
        ("retry_s", (1.0, -1.0, 1)),
        ("calls_at_once", (1.0, 0.0, 0)),
    ],
)
def test_a_client_out_of_bounds_is_refused_by_its_argument(
    field: str, bounds: tuple[float, float, int]
) -> None:
    check_bounds(1.0, 0.0, 1)
    with pytest.raises(InvalidRequest) as found:
        check_bounds(*bounds)
    assert found.value.field == field


def test_long_polls_take_turns_if_more_wait_than_may() -> None:
    assert poll_s(256, 256) == POLL_S and poll_s(1, 256, left_s=3.0) == 3.0
    assert poll_s(512, 256) == POLL_BUSY_S / 2
    assert poll_s(1_000_000, 256) == POLL_MIN_S
