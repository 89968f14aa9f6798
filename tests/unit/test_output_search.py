"""The search of a text in output, whatever pieces its bytes come in."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.api_gateway.views.output_search import (
    BEFORE_BYTES,
    LINE_BYTES_MAX,
    SHOWN_BYTES,
    FoundLine,
    LineSearch,
)


def found(text: str, pieces: list[bytes], offset: int = 0) -> list[FoundLine]:
    search = LineSearch(text, offset)
    lines = [line for piece in pieces for line in search.feed(piece)]
    return [*lines, *search.end()]


def test_lines_with_the_text_are_found_with_the_offsets_of_their_first_bytes() -> None:
    assert found("loss", [b"epoch 1\nLoss 0.5\nok\nloss"], 100) == [
        FoundLine(108, "Loss 0.5"),
        FoundLine(120, "loss"),
    ]


def test_nothing_is_found_where_the_text_is_not() -> None:
    assert found("error", [b"all is well\n"]) == []


@given(
    st.lists(st.sampled_from([b"ab", b"x", b"Abc", b""]), max_size=6),
    st.lists(st.integers(0, 30), max_size=4),
)
def test_pieces_change_nothing(lines: list[bytes], cuts: list[int]) -> None:
    whole = b"\n".join(lines)
    ends = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[begin:end] for begin, end in pairwise(ends)]
    assert found("AB", pieces) == found("AB", [whole])


def test_a_line_without_end_is_searched_in_pieces() -> None:
    search = LineSearch("needle", 0)
    lines = list(search.feed(b"x" * (LINE_BYTES_MAX + 10)))
    assert lines == []
    assert search.offset == LINE_BYTES_MAX
    assert [line.offset for line in search.feed(b" needle\n")] == [LINE_BYTES_MAX]


def test_a_long_line_is_shown_around_the_text() -> None:
    (line,) = found("needle", [b"x" * 2_000 + b"needle" + b"y" * 2_000])
    assert line.line.startswith("…" + "x" * BEFORE_BYTES + "needle")
    assert len(line.line) == SHOWN_BYTES + 1
