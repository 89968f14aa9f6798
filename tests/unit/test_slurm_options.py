"""The flags of Slurm's commands, as getopt_long reads them."""

import pytest

from libs.cli.slurm.options import MAY, NONE, Option, Table, parse
from libs.common.errors import Refused

TABLE = Table(
    "squeue",
    (
        Option("user", "u"),
        Option("noheader", "h", NONE),
        Option("start", "", NONE),
        Option("states", "t"),
        Option("jobs", "j", MAY),
    ),
    {"iterate": "use watch"},
    {"i": "iterate"},
)


def test_flags_come_with_values_behind_them_in_the_next_word_or_after_an_equals_sign() -> None:
    given = parse(TABLE, ["-u", "ada", "--states=PD,R", "-tCD", "-u=eve", "x", "--", "-y"])
    assert given.flags == [("user", "ada"), ("states", "PD,R"), ("states", "CD"), ("user", "eve")]
    assert given.rest == ["x", "-y"]
    assert given.last("states") == "CD" and given.listed("user") == ["eve"]
    assert given.has("user") and not given.has("start") and given.last("start", "no") == "no"


def test_letters_may_stand_together_and_the_last_may_take_a_value() -> None:
    assert parse(TABLE, ["-hu", "ada"]).flags == [("noheader", ""), ("user", "ada")]
    assert parse(TABLE, ["-hj17"]).flags == [("noheader", ""), ("jobs", "17")]
    assert parse(TABLE, ["-j"]).flags == [("jobs", "")]


def test_the_beginning_of_a_long_name_is_enough_if_it_is_the_only_one() -> None:
    assert parse(TABLE, ["--noh"]).flags == [("noheader", "")]
    with pytest.raises(Refused, match="--sta is not supported"):
        parse(TABLE, ["--sta"])


def test_a_dash_alone_is_a_word() -> None:
    assert parse(TABLE, ["-"]).rest == ["-"]


def test_flags_end_at_the_command_where_the_table_says_so() -> None:
    given = parse(TABLE._replace(stops=True), ["-h", "python", "-u", "x.py"])
    assert given.flags == [("noheader", "")] and given.rest == ["python", "-u", "x.py"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--iterate=5"], "--iterate is not supported: use watch"),
        (["-i", "5"], "-i is not supported: use watch"),
        (["--sta"], "--sta is not supported"),
        (["--userr", "x"], "--userr is not supported (did you mean --user?): "),
        (["-z"], "-z is not supported: the flags are --jobs, --noheader, "),
        (["--user"], "--user needs a value"),
        (["-u"], "-u needs a value"),
        (["--noheader=1"], "--noheader takes no value: remove '=1'"),
    ],
)
def test_a_flag_that_is_not_supported_is_named_with_what_to_use(
    words: list[str], text: str
) -> None:
    with pytest.raises(Refused) as caught:
        parse(TABLE, words)
    assert text in str(caught.value)
