"""Option types for numbers: finite floats, because JSON has no NaN or infinity, and node counts."""

import math
import re
from typing import Any, Final

import click

SHORT: Final = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(ms|s)")
NODES: Final = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?")


class Number(click.FloatRange):
    """A finite float within a range."""

    def _describe_range(self) -> str:
        """Return the range for help texts; click would write `x<=None` without one."""
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(
        self,
        value: Any,  # noqa: ANN401
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class Milliseconds(click.ParamType[int]):
    """An option value that is a short time, in milliseconds: `500ms`, `2s`, `0.5s`."""

    name = "time"

    def convert(
        self,
        value: Any,  # noqa: ANN401
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        match = None if isinstance(value, int) else SHORT.fullmatch(str(value))
        if isinstance(value, int):
            return value
        if match is None:
            self.fail(f"{value!r} is not a time: use for example 500ms or 2s", param, ctx)
        return round(float(match[1]) * (1 if match[2] == "ms" else 1_000))


def parse_replicas(text: str) -> tuple[int, int | None]:
    """Return the number for `4`, and both bounds for `0..8`. Raises ValueError."""
    match = NODES.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a number of replicas: use 4, or 0..8 to let the scheduler choose "
            "between these bounds"
        )
    return int(match[1]), int(match[2]) if match[2] else None


def parse_nodes(text: str) -> dict[str, int]:
    """Return the fields `nodes` and `nodes_max` for `4` or `2..8`. Raises ValueError."""
    match = NODES.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a number of nodes: use 4, or 2..8 for at least 2 and at most 8"
        )
    return {"nodes": int(match[1])} | ({"nodes_max": int(match[2])} if match[2] else {})


class Nodes(click.ParamType[dict[str, int]]):
    """A number of nodes, or a range such as 2..8."""

    name = "nodes"

    def convert(
        self,
        value: Any,  # noqa: ANN401
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> dict[str, int]:
        try:
            return value if isinstance(value, dict) else parse_nodes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
