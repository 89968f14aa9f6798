"""Tables: widths, truncation, and no control characters."""

from libs.cli.terminal.table import GREEN, Column, cut, render, width_of

COLUMNS = (Column("ID"), Column("N", right=True), Column("NAME", flexible=True))


def test_columns_are_aligned_and_lines_end_without_spaces() -> None:
    assert render(COLUMNS, [["a", "1", "x"], ["bbb", "20", "yy"]]) == [
        "ID    N  NAME",
        "a     1  x",
        "bbb  20  yy",
    ]


def test_without_headers_only_rows_set_the_width() -> None:
    assert render(COLUMNS, [["a", "1", "x"]], headers=False) == ["a  1  x"]


def test_an_empty_table_is_its_headers() -> None:
    assert render(COLUMNS, []) == ["ID  N  NAME"]


def test_only_flexible_columns_are_truncated() -> None:
    lines = render(COLUMNS, [["abcdef", "1", "a very long name indeed"]], width=24)
    assert [width_of(line) for line in lines] == [15, 24]
    assert lines[1] == "abcdef  1  a very long …"


def test_nothing_is_truncated_without_a_terminal() -> None:
    assert render(COLUMNS, [["a", "1", "x" * 300]])[1].endswith("x" * 300)


def test_wide_letters_count_as_two_cells() -> None:
    assert width_of("日本") == 4
    assert cut("日本語", 5) == "日本…"


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in render(COLUMNS, [["\x1b[2J", "1", "a\nb"]])[1]


def test_colours_do_not_change_the_alignment() -> None:
    columns = (Column("S", colour_of=lambda _: GREEN), Column("X"))
    plain, painted = render(columns, [["ok", "1"]]), render(columns, [["ok", "1"]], colour=True)
    assert plain[1] == "ok  1"
    assert painted[1] == "\x1b[32mok\x1b[0m  1"
