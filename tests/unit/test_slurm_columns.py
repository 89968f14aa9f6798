"""Formats of squeue, sinfo and sacct, and lists of nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.cli.formats.sbatch_values import nodes_named
from libs.cli.slurm.columns import (
    Field,
    Piece,
    accounting_lines,
    lines,
    named,
    parsable_lines,
    percent,
    sacct,
)
from libs.cli.slurm.node_lists import compressed
from libs.common.errors import Refused

Row = dict[str, str]
FIELDS = {
    "jobid": Field[Row]("JOBID", lambda row: row["id"], -6),
    "name": Field[Row]("NAME", lambda row: row["name"], 5),
}
LETTERS = {"i": "jobid", "j": "name"}
ROWS = [{"id": "ja", "name": "train"}, {"id": "jb", "name": "a\x1b[31mlong"}]


def test_a_percent_format_has_widths_and_texts() -> None:
    assert percent("%.5i|%-", {"i": "jobid"} | {"-": "x"})[:2] == [
        Piece("jobid", width=5, right=True),
        Piece("", text="|%-"),
    ]
    assert lines(percent("%.5i %3j%%", LETTERS), FIELDS, ROWS) == [
        "JOBID NAM%",
        "   ja tra%",
        "   jb a [%",
    ]


def test_a_field_without_a_width_is_as_long_as_its_value_and_one_with_a_hash_as_the_longest() -> (
    None
):
    assert lines(percent("%i %j", LETTERS), FIELDS, ROWS[:1], headers=False) == ["ja train"]
    assert lines(percent("%#i|%j", LETTERS), FIELDS, ROWS[:1]) == ["JOBID|NAME", "ja   |train"]


def test_a_named_format_has_columns_of_twenty_letters() -> None:
    assert lines(named("JobID,Name:.6", tuple(FIELDS)), FIELDS, ROWS[:1]) == [
        "JOBID                 NAME",
        "ja                   train",
    ]
    assert named("name:5x", tuple(FIELDS))[1] == Piece("", text="x")


@pytest.mark.parametrize("text", ["%x", "%.18i %z"])
def test_a_letter_that_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="is not supported: use %i, %j"):
        percent(text, LETTERS)


def test_a_name_that_is_not_known_is_refused() -> None:
    for call in (lambda: named("Fame", tuple(FIELDS)), lambda: sacct("Fame,%", FIELDS)):
        with pytest.raises(Refused, match="the column 'Fame' is not supported: use jobid, name"):
            call()


def test_accounting_has_a_line_of_dashes_and_marks_what_is_cut() -> None:
    assert accounting_lines(sacct("JobID,Name", FIELDS), FIELDS, ROWS) == [
        "JOBID   NAME ",
        "------ ----- ",
        "ja     train ",
        "jb     a [3+ ",
    ]
    assert accounting_lines(sacct("Name%-8", FIELDS), FIELDS, ROWS[:1], headers=False) == [
        "train    "
    ]
    assert sacct("JobID%12", FIELDS) == [Piece("jobid", width=12, right=True)]


def test_lines_for_programs_have_a_delimiter() -> None:
    pieces = sacct("JobID,Name", FIELDS)
    assert parsable_lines(pieces, FIELDS, ROWS[:1], headers=True, delimiter="|", ends=False) == [
        "JOBID|NAME",
        "ja|train",
    ]
    assert parsable_lines(pieces, FIELDS, ROWS[:1], headers=False, delimiter=";", ends=True) == [
        "ja;train;"
    ]


def test_nodes_are_shown_as_one_list() -> None:
    assert compressed(["node-1", "node-2", "node-4", "gpu", "x07"]) == "node-[1-2,4],x07,gpu"
    assert compressed(["n08", "n09", "n10"]) == "n[08-09],n10"
    assert compressed([]) == ""


@given(st.lists(st.from_regex(r"[a-z-]{1,3}[0-9]{1,3}", fullmatch=True), unique=True, max_size=12))
def test_a_list_of_nodes_is_read_back(nodes: list[str]) -> None:
    assert sorted(nodes_named(compressed(nodes))) == sorted(nodes)
