"""Short arrays: arrays whose elements one supervisor runs after another, without a job for each.

Pure. Tests: tests/unit/test_short_array_requests.py.
"""

from typing import Any

from libs.common.errors import Refused
from libs.common.model import JobSpec


def take_short(values: dict[str, Any]) -> None:
    """Move the field `short` into `array`, in place. Raises Refused."""
    short = values.pop("short", False)
    if not isinstance(short, bool):
        raise Refused(f"short: {short!r} is not true or false")
    if short and values.get("array") is None:
        raise Refused("short: the job is not an array: give array, for example 0-999")
    if short:
        values["array"]["short"] = True


def check(spec: JobSpec) -> None:
    """Raise Refused if the elements of a short array could not run as the job asks."""
    if spec.array is None or not spec.array.short:
        return
    unfit = {
        "nodes": spec.most_nodes > 1,
        "image": bool(spec.image) or spec.container is not None,
        "retries": spec.retries > 0,
        "hang_timeout": spec.hang_timeout_s > 0,
        "allocation": spec.allocation is not None,
    }
    for name, is_unfit in unfit.items():
        if is_unfit:
            raise Refused(
                f"{name}: a short array runs the elements of a batch one after another on one "
                f"node, without containers, retries of single elements or hang detection: leave "
                f"out {name}, or leave out short"
            )
