"""The words of facts about elements of arrays. Pure; a part of `history.py`."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from libs.common import element_runs
from libs.common import facts as f
from libs.common.quantities import counted


def _begun(fact: f.ElementBegun) -> str:
    if not fact.count:
        return f"element {fact.number} of array {fact.array} begun"
    first = f"{counted(fact.count, 'element')} of array {fact.array} from {fact.number} on"
    return f"batch of {first} begun"


def _ended(fact: f.ElementsEnded) -> str:
    reasons: Counter[str] = Counter()
    for number, result in fact.runs:
        reasons[element_runs.reason_of(result)] += number
    how = ", ".join(f"{number} {reason}" for reason, number in reasons.items()) or "none"
    return (
        f"elements of attempt {fact.attempt} ended on {fact.node_id}: {how}; "
        f"{fact.begun} of the batch have begun"
    )


ELEMENT_WORDS: Final[dict[type, Callable[[Any], str]]] = {
    f.ElementBegun: _begun,
    f.ElementsEnded: _ended,
}
