"""Records facts of the agent's core, and tells the core what the log has stored.

A fact that the log cannot store must neither end the agent, nor take the facts of other jobs with
it, which the core groups into the same commit. Tests: tests/integration/test_agent.py.
"""

import asyncio
from collections.abc import Callable

from libs.common.errors import Refused
from libs.common.facts import NodeFact
from libs.common.model import attempt_key
from libs.common.transport.writer import Writer, was_stored
from services.node_agent.core import actions as a
from services.node_agent.core import observations as o

Tell = Callable[[o.Observation], None]


def record(writer: Writer, action: a.Record, tell: Tell) -> None:
    """Append facts as one commit. If the log cannot store it, append each fact alone.

    An attempt of which a fact is lost counts as not recorded: the next agent records it again.
    """

    def stored(future: asyncio.Future[int]) -> None:
        if was_stored(future):
            tell(o.FactsStored(future.result(), action.marks))
        elif _is_refused(future):
            _record_alone(writer, action, tell)

    writer.put(action.facts).add_done_callback(stored)


def _record_alone(writer: Writer, action: a.Record, tell: Tell) -> None:
    results = [writer.put([fact]) for fact in action.facts]
    left = len(results)

    def ended(future: asyncio.Future[int]) -> None:
        nonlocal left
        left -= 1
        if left or not all(was_stored(each) or _is_refused(each) for each in results):
            return
        lost = {
            _key_of(fact)
            for fact, result in zip(action.facts, results, strict=True)
            if not was_stored(result)
        }
        seq = max((each.result() for each in results if was_stored(each)), default=0)
        tell(o.FactsStored(seq, tuple(mark for mark in action.marks if mark.key not in lost)))

    for result in results:
        result.add_done_callback(ended)


def _is_refused(future: asyncio.Future[int]) -> bool:
    return not future.cancelled() and isinstance(future.exception(), Refused)


def _key_of(fact: NodeFact) -> str:
    """Return the attempt that a fact is about; empty if it is about none."""
    job_id, attempt = getattr(fact, "job_id", None), getattr(fact, "attempt", None)
    return attempt_key(job_id, attempt) if job_id is not None and attempt is not None else ""
