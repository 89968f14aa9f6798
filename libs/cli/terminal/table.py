"""Tables as plain text, truncated and coloured for terminals.

No library: importing one takes longer than all the rest of `muster ps`. Control characters
are removed from every cell. Pure. Tests: tests/unit/test_cli_table.py.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

GAP: Final = "  "
CUT: Final = "…"
WIDTH_MIN: Final = 6

RED: Final = "31"
GREEN: Final = "32"
YELLOW: Final = "33"
CYAN: Final = "36"
DIM: Final = "2"
BOLD: Final = "1"

STATE_COLOURS: Final = {
    "running": GREEN, "completed": DIM, "failed": RED, "rejected": RED, "cancelled": YELLOW,
    "pending": CYAN, "queued": CYAN,
    "begun": GREEN, "placed": CYAN, "releasing": YELLOW, "healthy": GREEN, "degraded": YELLOW,
    "unreachable": RED, "lost": RED,
    "offline": RED, "resetting": YELLOW, "in_use": GREEN, "allocated": CYAN, "maintenance": YELLOW,
    "error": RED, "started": GREEN,
    "ready": GREEN, "starting": CYAN, "waiting": CYAN, "redeploying": CYAN, "crash_looping": RED,
    "unready": YELLOW, "draining": YELLOW, "stopping": YELLOW, "undeployed": DIM,
}  # fmt: skip


class Column(NamedTuple):
    """A column of a table.

    `right` aligns it to the right. `colour_of` returns the colour for a cell's text, or an empty
    text. `flexible` columns are truncated first.
    """

    title: str
    right: bool = False
    colour_of: Callable[[str], str] | None = None
    flexible: bool = False


def state_colour(text: str) -> str:
    """Return the colour for a state of a job, a node or a GPU."""
    return STATE_COLOURS.get(text.lower(), "")


def clean(text: str) -> str:
    """Return `text` with control characters replaced by spaces."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text)


def natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key that puts node-2 before node-10."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", text)
    ]


def width_of(text: str) -> int:
    """Return the number of terminal cells that `text` takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text
    )


def cut(text: str, width: int) -> str:
    """Return `text` in at most `width` cells; a truncated text ends with an ellipsis."""
    if width_of(text) <= width:
        return text
    while text and width_of(text) > width - 1:
        text = text[:-1]
    return text + CUT


def paint(text: str, colour: str) -> str:
    """Return `text` with a colour (an ANSI SGR number)."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and text.strip() else text


def render(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    headers: bool = True,
    width: int = 0,
    colour: bool = False,
) -> list[str]:
    """Return the lines of a table; a `width` of 0 means no limit."""
    cells = [[clean(cell) for cell in row] for row in rows]
    titles = [column.title for column in columns]
    measured = [titles, *cells] if headers else cells
    widths = [max((width_of(row[i]) for row in measured), default=0) for i in range(len(columns))]
    if width:
        widths = _fitted(columns, widths, width)
    head = [_line(columns, titles, widths, colour, title=True)] if headers else []
    return head + [_line(columns, row, widths, colour) for row in cells]


def _fitted(columns: Sequence[Column], widths: list[int], width: int) -> list[int]:
    """Return the column widths that fit into `width`.

    The widest flexible column shrinks first. If none can shrink further, lines stay too long.
    """
    widths = list(widths)
    over = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while over > 0:
        able = [i for i, column in enumerate(columns) if column.flexible and widths[i] > WIDTH_MIN]
        if not able:
            return widths
        widest = max(able, key=lambda i: widths[i])
        widths[widest] -= 1
        over -= 1
    return widths


def _line(
    columns: Sequence[Column],
    row: Sequence[str],
    widths: Sequence[int],
    colour: bool,
    title: bool = False,
) -> str:
    parts = []
    for column, cell, width in zip(columns, row, widths, strict=True):
        text = cut(cell, width)
        space = " " * (width - width_of(text))
        if colour:
            text = paint(
                text, BOLD if title else column.colour_of(cell) if column.colour_of else ""
            )
        parts.append(space + text if column.right else text + space)
    return GAP.join(parts).rstrip()
