"""A call of the command line, and how it must end, for `test_cli_contract.py`."""

from typing import NamedTuple


class Case(NamedTuple):
    """`muster ARGV` ends with `code` and prints `says`.

    `before` are calls that must succeed; `ends` is False for a verb that goes on.
    """

    argv: tuple[str, ...]
    says: str = ""
    code: int = 0
    before: tuple[tuple[str, ...], ...] = ()
    stdin: str = ""
    ends: bool = True


def case(
    words: str,
    says: str = "",
    code: int = 0,
    before: tuple[tuple[str, ...], ...] = (),
    stdin: str = "",
    ends: bool = True,
) -> Case:
    return Case(
        argv=tuple(words.split()), says=says, code=code, before=before, stdin=stdin, ends=ends
    )
