"""Fields of a job about its own preemption. Pure.

Tests: tests/unit/test_gateway_preemption_fields.py.
"""

from collections.abc import Callable
from typing import Any, Final

from libs.common.errors import Refused
from libs.common.model import JobSpec
from services.api_gateway.intents.order_intents import YEAR_S
from services.api_gateway.times import duration_s

# Names that users may write, and the fields of JobSpec.
DURATIONS: Final = {"checkpoint_grace": "checkpoint_grace_s", "min_run": "min_run_s"}
RANGES: Final = (
    ("checkpoint_grace_s", 0, 86_400),
    ("min_run_s", 0, YEAR_S),
    ("checkpoint_signal", 1, 64),
)


def take_aliases(values: dict[str, Any], signal_of: Callable[[object], int]) -> None:
    """Replace durations and the signal's name by numbers, in place. Raises Refused."""
    for alias, name in DURATIONS.items():
        if alias in values and name in values:
            raise Refused(f"{alias}: {name} is given too, and both mean the same: give one of them")
        if alias in values or name in values:
            values[name] = duration_s(values.pop(alias, None) or values.get(name, 0), alias)
    if "checkpoint_signal" in values:
        values["checkpoint_signal"] = signal_of(values["checkpoint_signal"])


def check(spec: JobSpec) -> None:
    """Raise Refused if the fields contradict each other."""
    if not spec.preemptible and (spec.checkpoint_grace_s or spec.min_run_s):
        raise Refused(
            "preemptible: false, but checkpoint_grace and min_run apply only to preemptible jobs: "
            "set preemptible, or leave them out"
        )
    if spec.preemptible and not spec.requeue:
        raise Refused(
            "requeue: false, but a preempted job is requeued: leave out requeue, or preemptible"
        )
