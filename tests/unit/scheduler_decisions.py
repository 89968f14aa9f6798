"""All decisions of the scheduler's rules in a given state."""

from collections.abc import Sequence

from libs.common.facts import AnyFact
from libs.common.model import NodeId
from services.scheduler.decide.decide import Observations, decide
from services.scheduler.state.state import State
from tests.given import (
    SECOND_NS,
    tell,
)


def decisions(
    state: State,
    now_s: float = 1,
    silent: Sequence[tuple[NodeId, int]] = (),
    dead: Sequence[tuple[NodeId, int]] = (),
) -> list[AnyFact]:
    """Return the facts of all rules; each decision is folded before the next one."""
    decided: list[AnyFact] = []
    for _ in range(100):
        facts = decide(state, int(now_s * SECOND_NS), Observations(tuple(silent), tuple(dead)))
        if not facts:
            return decided
        decided.extend(facts)
        state.apply_own(facts, int(now_s * SECOND_NS))
    raise AssertionError(f"the rules never end: {decided[-3:]}")


def hear(state: State, *facts: AnyFact) -> None:
    """Fold these facts of other writers, at time 0."""
    for fact in facts:
        state.refresh(tell(state.cluster, fact))
