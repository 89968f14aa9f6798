"""Plug-ins for tests, good and bad ones, and the entry points that name them."""

import time
from collections.abc import Callable
from importlib.metadata import EntryPoint
from itertools import count
from typing import Any

from libs.common import facts as f
from libs.common.state.plugins import ORDER
from services.scheduler import policies
from services.scheduler.decide.decide import decide
from services.scheduler.placement import strategies
from services.scheduler.state.state import State
from tests.given import (
    EPOCH,
    SECOND_NS,
    given,
    registered,
    tell,
    waiting,
)

HERE = "tests.unit.plug_in_functions"


TERM = f.TermBegan(instance="a", orders={"mine": ""}, scores={"mine": ""})


def nothing_is_plugged() -> None:
    policies.PLUGGED.clear()
    strategies.PLUGGED.clear()


def by_least(job: Any, queue: Any, now_ns: int) -> Any:
    return (job.spec.gpus,)


def widest(place: Any, fit: Any, request: Any, mix: Any) -> Any:
    return place.whole.bit_count()


def afraid_of_b(place: Any, fit: Any, request: Any, mix: Any) -> Any:
    return 1 // (place.node_id != "b")


def afraid_of_boom(job: Any, queue: Any, now_ns: int) -> Any:
    return (1 // (job.spec.name != "boom"), job.spec.gpus)


NUMBERS = count()


BAD: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (
        lambda *_: 1 // 0,
        "it raised ZeroDivisionError: integer division or modulo by zero",
    ),
    "exits": (lambda *_: exit(3), "it raised SystemExit: 3"),
    "surrogates": (lambda *_: exit("\udc80"), "it raised SystemExit: ?"),
    "floats": (lambda *_: (0.5,), "it returned (0.5, "),
    "nothing": (lambda *_: None, "it returned None, which is no valid answer"),
    "counts": (lambda *_: (next(NUMBERS),), "it returned (0, "),
    "forever": (lambda *_: forever(), "it did not return within 1 s"),
    "slowly": (lambda *_: burn(0.06), "it takes more than 100 us a call"),
}


NO_FUNCTION = 7


def forever() -> None:
    while True:
        try:
            time.sleep(0.01)
        except (OSError, ValueError):  # as careless as plug-ins are
            continue


def burn(seconds: float) -> tuple[int, ...]:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return (0,)


def point(name: str, what: str, kind: str = ORDER) -> tuple[str, EntryPoint]:
    return kind, EntryPoint(name, f"{HERE}:{what}", f"muster.{kind}s")


def in_term(fact: f.TermBegan, *history: f.AnyFact | list[f.AnyFact]) -> State:
    """Return the state of a scheduler that has just begun this term, after this history."""
    cluster = given(*history).cluster
    tell(cluster, fact, seq=EPOCH)
    state = State(cluster)
    state.begin(EPOCH, 0)
    return state


def queue_by(policy: str) -> f.QueueSet:
    return f.QueueSet(queue="default", policy=policy)


def two() -> list[f.AnyFact]:
    return [
        registered("a"),
        queue_by("mine"),
        *waiting("i", gpus=2, priority=90),
        *waiting("j", gpus=1),
    ]


def order_of(state: State) -> list[str]:
    said: list[str] = []
    while facts := decide(state, SECOND_NS):
        said += [str(fact.job_id) for fact in facts if isinstance(fact, f.JobPlaced)]
        state.apply_own(facts, SECOND_NS)
    return said
