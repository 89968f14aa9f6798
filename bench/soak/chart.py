"""A chart as SVG: one small picture for each process, all with the same axis of time. Pure."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

WIDTH: Final = 300
HEIGHT: Final = 110
COLUMNS: Final = 3
LEFT: Final = 46
TOP: Final = 22
BOTTOM: Final = 20
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73")

# Time and value, of one curve.
Curve = Sequence[tuple[float, float]]


def chart(title: str, unit: str, pictures: Mapping[str, Mapping[str, Curve]]) -> str:
    """Return the SVG. `pictures` has the curves of each picture by name."""
    rows = -(-len(pictures) // COLUMNS)
    width, height = COLUMNS * WIDTH, 40 + rows * HEIGHT
    names = dict.fromkeys(name for curves in pictures.values() for name in curves)
    legend = "".join(
        f'<tspan fill="{COLOURS[index % len(COLOURS)]}" dx="12">{escape(name)}</tspan>'
        for index, name in enumerate(names)
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="10">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)} [{escape(unit)}] {legend}</text>',
    ]
    for index, (name, curves) in enumerate(pictures.items()):
        x, y = index % COLUMNS * WIDTH, 30 + index // COLUMNS * HEIGHT
        parts.append(f'<g transform="translate({x},{y})">{_picture(name, curves)}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _picture(name: str, curves: Mapping[str, Curve]) -> str:
    points = [point for curve in curves.values() for point in curve]
    heading = f'<text x="{LEFT}" y="14">{escape(name)}</text>'
    if not points:
        return heading
    last = max(at for at, _ in points) or 1.0
    most = max(value for _, value in points) or 1.0
    right, floor = WIDTH - LEFT - 10, HEIGHT - TOP - BOTTOM
    lines = [
        heading,
        f'<path d="M{LEFT} {TOP} V{TOP + floor} H{LEFT + right}" fill="none" stroke="#888"/>',
        f'<text x="{LEFT - 4}" y="{TOP + 8}" text-anchor="end">{most:.0f}</text>',
        f'<text x="{LEFT - 4}" y="{TOP + floor}" text-anchor="end">0</text>',
        f'<text x="{LEFT + right}" y="{TOP + floor + 12}" text-anchor="end">'
        f"{last / 60:.0f} min</text>",
    ]
    for index, curve in enumerate(curves.values()):
        path = " ".join(
            f"{LEFT + at / last * right:.1f},{TOP + floor - value / most * floor:.1f}"
            for at, value in curve
        )
        colour = COLOURS[index % len(COLOURS)]
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
    return "".join(lines)
