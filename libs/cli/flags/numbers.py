"""Numbers of options that may be broken: never NaN or infinity, which no JSON can carry; and
numbers of nodes.
"""

import math
import re
from typing import Any, Final

import click

NODES: Final = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?")


class Number(click.FloatRange):
    """A float in its range, and finite."""

    def convert(
        self,
        value: Any,  # noqa: ANN401
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no number.", param, ctx)
        return number


def nodes_asked(text: str) -> dict[str, int]:
    """`4`, or `2..8` for at least and at most, as the gateway takes it. Raises ValueError."""
    found = NODES.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is no number of nodes: write 4, or 2..8 for at least 2 and at most 8"
        )
    return {"nodes": int(found[1])} | ({"nodes_max": int(found[2])} if found[2] else {})


class Nodes(click.ParamType[dict[str, int]]):
    """A number of nodes, or the fewest and the most."""

    name = "nodes"

    def convert(
        self,
        value: Any,  # noqa: ANN401
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> dict[str, int]:
        try:
            return value if isinstance(value, dict) else nodes_asked(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
