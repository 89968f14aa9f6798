"""What a job says of being preempted, as people write it. Pure, a part of `intents.py`.

Held by tests/unit/test_gateway_preemption_fields.py.
"""

from collections.abc import Callable
from typing import Any, Final

from libs.common.errors import Refused
from libs.common.model import JobSpec
from services.api_gateway.intents.order_intents import YEAR_S
from services.api_gateway.times import duration_s

# People's names, and the fields of JobSpec.
DURATIONS: Final = {"checkpoint_grace": "checkpoint_grace_s", "min_run": "min_run_s"}
RANGES: Final = (
    ("checkpoint_grace_s", 0, 86_400),
    ("min_run_s", 0, YEAR_S),
    ("checkpoint_signal", 1, 64),
)


def take_aliases(values: dict[str, Any], signal_of: Callable[[object], int]) -> None:
    """Read durations and the signal's name, in place. Raises Refused."""
    for alias, name in DURATIONS.items():
        if alias in values and name in values:
            raise Refused(f"{alias}: {name} is given too: give one of them")
        if alias in values or name in values:
            values[name] = duration_s(values.pop(alias, None) or values.get(name, 0), alias)
    if "checkpoint_signal" in values:
        values["checkpoint_signal"] = signal_of(values["checkpoint_signal"])


def check(spec: JobSpec) -> None:
    """Raises Refused for words that mean nothing, or contradict each other."""
    if not spec.preemptible and (spec.checkpoint_grace_s or spec.min_run_s):
        raise Refused(
            "preemptible: checkpoint_grace and min_run are of jobs that may be preempted: "
            "say preemptible, or leave them out"
        )
    if spec.preemptible and not spec.requeue:
        raise Refused("preemptible: a preempted job waits to be started again: leave out requeue")
