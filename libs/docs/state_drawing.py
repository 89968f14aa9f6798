"""Draw a state diagram of Mermaid as SVG, without a browser. Pure: text in, text out.

States stand in columns by their distance from the beginning. Arrows forward leave a state at its
right side; arrows back run below. The names of the events are the arrows' tooltips: the pages list
them in a table below the drawing. Tests: tests/unit/test_state_drawing.py.
"""

import html
import re
from typing import Final, NamedTuple

ARROW: Final = re.compile(r"\s*(\S+) --> (\S+?)(?:: (.*))?")
BEGIN: Final = "[*]"
WIDTH: Final = 118
HEIGHT: Final = 34
GAP_X: Final = 92
GAP_Y: Final = 40
MARGIN: Final = 16


class Arrow(NamedTuple):
    """A transition, and the events that cause it."""

    before: str
    after: str
    events: str


class Box(NamedTuple):
    """The position of a state: the left upper corner and the size."""

    x: int
    y: int
    width: int

    @property
    def middle(self) -> int:
        return self.y + HEIGHT // 2


def arrows_of(diagram: str) -> list[Arrow]:
    """Return the arrows of a `stateDiagram-v2`; those to its end are left out."""
    found = [ARROW.fullmatch(line) for line in diagram.splitlines()]
    arrows = [Arrow(each[1], each[2], each[3] or "") for each in found if each]
    return [arrow for arrow in arrows if arrow.after != BEGIN]


def columns_of(arrows: list[Arrow]) -> list[list[str]]:
    """Return the states by their distance from the beginning, each column in order of mention."""
    states = list(dict.fromkeys(name for arrow in arrows for name in arrow[:2]))
    columns: list[list[str]] = []
    placed: dict[str, int] = {}
    now = [BEGIN] if BEGIN in states else states[:1]
    while now:
        placed |= dict.fromkeys(now, len(columns))
        columns.append(now)
        reached = [arrow.after for arrow in arrows if arrow.before in now]
        now = [state for state in states if state in reached and state not in placed]
    left = [state for state in states if state not in placed]
    return [*columns, left] if left else columns


def drawn(diagram: str) -> str:
    """Return the SVG of a diagram."""
    arrows = arrows_of(diagram)
    columns = columns_of(arrows)
    most = max(len(column) for column in columns)
    boxes = {
        state: _box(at, row, len(column), most)
        for at, column in enumerate(columns)
        for row, state in enumerate(column)
    }
    below = MARGIN + most * (HEIGHT + GAP_Y)
    back = [each for each in arrows if _is_back(boxes, each)]
    height = below + 14 * len(back) + MARGIN
    width = max(box.x + box.width for box in boxes.values()) + MARGIN + 48
    lines = [
        f'<svg class="states" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        'xmlns="http://www.w3.org/2000/svg" aria-label="States and transitions">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="currentColor"/>'
        "</marker></defs>",
    ]
    for arrow in arrows:
        lane = below + 14 * back.index(arrow) if arrow in back else 0
        path = _path(boxes[arrow.before], boxes[arrow.after], lane)
        lines.append(
            f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.65" '
            f'marker-end="url(#tip)"><title>{html.escape(_said(arrow))}</title></path>'
        )
    lines += [_state(name, box) for name, box in boxes.items()]
    return "\n".join([*lines, "</svg>"])


def _box(column: int, row: int, rows: int, most: int) -> Box:
    if column == 0:
        begin = MARGIN + (most - 1) * (HEIGHT + GAP_Y) // 2
        return Box(MARGIN, begin, HEIGHT // 2)
    x = MARGIN + 60 + (column - 1) * (WIDTH + GAP_X)
    first = MARGIN + (most - rows) * (HEIGHT + GAP_Y) // 2
    return Box(x, first + row * (HEIGHT + GAP_Y), WIDTH)


def _is_back(boxes: dict[str, Box], arrow: Arrow) -> bool:
    return boxes[arrow.after].x < boxes[arrow.before].x


def _path(source: Box, target: Box, lane: int) -> str:
    if source == target:
        right, top = source.x + source.width - 26, source.y
        return f"M{right} {top}C{right - 6} {top - 24} {right + 28} {top - 24} {right + 14} {top}"
    if lane:
        from_x, to_x = source.x + source.width // 3, target.x + 2 * target.width // 3
        bottom, end = source.y + HEIGHT, target.y + HEIGHT
        middle = (from_x + to_x) // 2
        return (
            f"M{from_x} {bottom}C{from_x} {lane} {from_x} {lane} {middle} {lane}"
            f"S{to_x} {lane} {to_x} {end}"
        )
    if source.x == target.x:
        right = source.x + source.width
        bend = right + 14 + abs(source.y - target.y) // 4
        return (
            f"M{right} {source.middle}C{bend} {source.middle} {bend} {target.middle} "
            f"{right} {target.middle}"
        )
    right, half = source.x + source.width, (target.x - source.x - source.width) // 2
    return (
        f"M{right} {source.middle}C{right + half} {source.middle} {target.x - half} "
        f"{target.middle} {target.x} {target.middle}"
    )


def _said(arrow: Arrow) -> str:
    before = "(none)" if arrow.before == BEGIN else arrow.before
    return f"{before} to {arrow.after}" + (f": {arrow.events}" if arrow.events else "")


def _state(name: str, box: Box) -> str:
    if name == BEGIN:
        return f'<circle cx="{box.x + 8}" cy="{box.middle}" r="7" fill="currentColor"/>'
    return (
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{HEIGHT}" rx="8" '
        'fill="var(--md-default-bg-color, #fff)" stroke="currentColor"/>'
        f'<text x="{box.x + box.width // 2}" y="{box.middle + 5}" text-anchor="middle" '
        f'font-size="14" fill="currentColor">{html.escape(name)}</text>'
    )
