"""A panel of the board, its queries and units. Pure."""

from typing import NamedTuple

# Units of Grafana.
NONE, RATIO, SECONDS, BYTES, RATE = "none", "percentunit", "s", "bytes", "Bps"
PER_SECOND, CELSIUS, WATTS, DATE = "cps", "celsius", "watt", "dateTimeFromNow"
STAT, LINES, TABLE = "stat", "timeseries", "table"
# Columns of Grafana's grid.
FULL, HALF, THIRD, QUARTER, SIXTH = 24, 12, 8, 6, 4


class Query(NamedTuple):
    """A query, and the legend of its series."""

    expr: str
    legend: str = ""


class Panel(NamedTuple):
    """A panel; `width` is in columns of Grafana's grid."""

    title: str
    kind: str
    unit: str
    width: int
    queries: tuple[Query, ...]
    description: str = ""


def one(
    title: str, kind: str, unit: str, width: int, expr: str, legend: str = "", why: str = ""
) -> Panel:
    return Panel(title, kind, unit, width, (Query(expr, legend),), why)
