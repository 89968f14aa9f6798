"""Figures of these tests, printed as benchmarks print theirs; `pytest -s` shows them."""

import json
from typing import Any


def say(figure: str, value: float, unit: str, n: int, **setting: Any) -> None:
    print(
        json.dumps(
            {"figure": figure, "value": round(value, 3), "unit": unit, "n": n, "setting": setting}
        ),
        flush=True,
    )
