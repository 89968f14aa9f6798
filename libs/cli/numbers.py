"""Numbers of options that may be broken: never NaN or infinity, which no JSON can carry."""

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A float in its range, and finite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401  click's own
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no number.", param, ctx)
        return number
