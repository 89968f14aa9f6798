"""The header `traceparent`, ids that are derived, and which traces are sampled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.spans.trace_context import TraceContext, derived_span_id, is_sampled, parse

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.mark.parametrize(("flags", "is_sampled"), [("00", False), ("01", True), ("03", True)])
def test_a_context_is_read_as_it_is_written(flags: str, is_sampled: bool) -> None:
    found = parse(f"00-{TRACE}-{PARENT}-{flags}")
    assert found == TraceContext(TRACE, PARENT, is_sampled)
    assert found.text == f"00-{TRACE}-{PARENT}-{int(is_sampled):02}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-1-2-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"01-{TRACE}-{PARENT}-01-" + "x" * 600,
    ],
)
def test_a_malformed_context_is_none(text: str) -> None:
    assert parse(text) is None


def test_a_later_version_may_have_more_fields() -> None:
    assert parse(f"01-{TRACE}-{PARENT}-01-more") == TraceContext(TRACE, PARENT)


def test_the_same_parts_give_the_same_span_and_others_another() -> None:
    one = derived_span_id(TRACE, "muster.job", "j1")
    assert one == derived_span_id(TRACE, "muster.job", "j1") and len(one) == 16
    assert one != derived_span_id(TRACE, "muster.jobj", "1")


@given(st.integers(0, (1 << 128) - 1), st.integers(0, 100), st.integers(0, 100))
def test_a_larger_part_has_all_traces_of_a_smaller_one(number: int, one: int, other: int) -> None:
    trace = f"{number:032x}"
    less, more = sorted((one, other))
    assert is_sampled(trace, more) or not is_sampled(trace, less)
    assert is_sampled(trace, 100) and not is_sampled(trace, 0)
