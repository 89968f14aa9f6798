"""Slurm's format strings: `%.18i %j` (-o), `JobID:.18,Name` (-O) and `JobID%20,State` (sacct).

Pure. A format becomes pieces; `lines` renders them for rows, cut to their widths as Slurm does.
Tests: tests/unit/test_slurm_columns.py.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from libs.common.errors import Refused

R = TypeVar("R")

# The width of a column of -O without one.
NAMED_WIDTH: Final = 20
WIDTH_MAX: Final = 4_096
CUT: Final = "+"

_PERCENT: Final = re.compile(r"%(#?)(\.?)([0-9]{0,4})([A-Za-z%])")
_NAMED: Final = re.compile(r"([A-Za-z]+)(?::(\.?)([0-9]{0,4})([^,]*))?")
_SACCT: Final = re.compile(r"([A-Za-z]+)(?:%(-?)([0-9]{1,4}))?")


class Field(NamedTuple, Generic[R]):
    """A column: its title, its value for a row, and its width in sacct (negative: left)."""

    title: str
    of: Callable[[R], str]
    width: int = 10


class Piece(NamedTuple):
    """A part of a line: a field, or a text between fields.

    A `width` of 0 takes the value as it is; `auto` takes the longest value's width.
    """

    field: str
    width: int = 0
    right: bool = False
    auto: bool = False
    text: str = ""


def percent(text: str, letters: Mapping[str, str]) -> list[Piece]:
    """Return the pieces of a format of `-o`. Raises Refused for a letter that is not known."""
    found: list[Piece] = []
    end = 0
    for match in _PERCENT.finditer(text):
        if match.start() > end:
            found.append(Piece("", text=text[end : match.start()]))
        auto, right, width, letter = match.groups()
        end = match.end()
        if letter == "%":
            found.append(Piece("", text="%"))
        elif letter not in letters:
            raise Refused(
                f"%{letter} in the format {text!r} is not supported: use "
                + ", ".join(f"%{each}" for each in letters)
            )
        else:
            found.append(
                Piece(
                    letters[letter],
                    width=int(width or 0),
                    right=right == ".",
                    auto=auto == "#",
                )
            )
    return [*found, Piece("", text=text[end:])] if end < len(text) else found


def named(text: str, names: Sequence[str]) -> list[Piece]:
    """Return the pieces of a format of `-O`. Raises Refused for a name that is not known."""
    found: list[Piece] = []
    for word in filter(None, text.split(",")):
        match = _NAMED.fullmatch(word)
        name = match[1].lower() if match else ""
        if match is None or name not in names:
            raise _unknown(word, names)
        width = int(match[3] or NAMED_WIDTH)
        found.append(Piece(name, width=width, right=match[2] == "."))
        if match[4]:
            found.append(Piece("", text=match[4]))
    return found


def sacct(text: str, fields: Mapping[str, Field[R]]) -> list[Piece]:
    """Return the columns of a format of sacct. Raises Refused for a name that is not known."""
    found: list[Piece] = []
    for word in filter(None, text.split(",")):
        match = _SACCT.fullmatch(word)
        name = match[1].lower() if match else ""
        if match is None or name not in fields:
            raise _unknown(word, list(fields))
        own = fields[name].width
        width = int(match[3] or abs(own))
        left = match[2] == "-" if match[3] else own < 0
        found.append(Piece(name, width=width, right=not left))
    return found


def _unknown(word: str, names: Sequence[str]) -> Refused:
    return Refused(f"the column {word!r} is not supported: use " + ", ".join(sorted(names)))


def lines(
    pieces: Sequence[Piece],
    fields: Mapping[str, Field[R]],
    rows: Sequence[R],
    headers: bool = True,
) -> list[str]:
    """Return the lines of a table of squeue or sinfo."""
    cells = [[fields[piece.field].of(row) for piece in pieces if piece.field] for row in rows]
    titles = [fields[piece.field].title for piece in pieces if piece.field]
    shown = [titles, *cells] if headers else cells
    widths = [
        max((len(row[place]) for row in [titles, *cells]), default=0)
        for place in range(len(titles))
    ]
    return [_line(pieces, row, widths) for row in shown]


def _line(pieces: Sequence[Piece], cells: Sequence[str], widths: Sequence[int]) -> str:
    parts: list[str] = []
    place = 0
    for piece in pieces:
        if not piece.field:
            parts.append(piece.text)
            continue
        text = one_line(cells[place])
        width = widths[place] if piece.auto else min(piece.width, WIDTH_MAX)
        parts.append(_fitted(text, width, piece.right) if width else text)
        place += 1
    return "".join(parts).rstrip()


def _fitted(text: str, width: int, right: bool) -> str:
    text = text[:width]
    return text.rjust(width) if right else text.ljust(width)


def one_line(text: str) -> str:
    """Return the text without control characters, which could change a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def accounting_lines(
    pieces: Sequence[Piece],
    fields: Mapping[str, Field[R]],
    rows: Sequence[R],
    headers: bool = True,
) -> list[str]:
    """Return the lines of a table of sacct: a row of dashes, and `+` at the end of a cut value."""
    titles = [_accounted(fields[piece.field].title, piece) for piece in pieces]
    dashes = ["-" * piece.width for piece in pieces]
    cells = [[_accounted(fields[piece.field].of(row), piece) for piece in pieces] for row in rows]
    return [" ".join(row) + " " for row in ([titles, dashes, *cells] if headers else cells)]


def _accounted(text: str, piece: Piece) -> str:
    text = one_line(text)
    if len(text) > piece.width:
        text = text[: max(0, piece.width - 1)] + CUT
    return _fitted(text, piece.width, piece.right)


def parsable_lines(
    pieces: Sequence[Piece],
    fields: Mapping[str, Field[R]],
    rows: Sequence[R],
    headers: bool,
    delimiter: str,
    ends: bool,
) -> list[str]:
    """Return lines for programs: values with a delimiter between them; with `ends` also behind."""
    titles = [fields[piece.field].title for piece in pieces]
    cells = [[one_line(fields[piece.field].of(row)) for piece in pieces] for row in rows]
    shown = [titles, *cells] if headers else cells
    return [delimiter.join(row) + (delimiter if ends else "") for row in shown]
