"""The scheduler's answers to `why`, `whatif` and `upcoming`.

A child process computes each answer on its copy of the working state. That state may hold decisions
that the log has not acknowledged yet. This is safe: nothing acts on an answer, the child writes no
facts, and a scheduler whose decisions the log refuses ends. A question about the past (`at`) is
answered from acknowledged commits alone (`past.py`).
"""

from collections.abc import Callable

import msgspec

from libs.common import subjects
from libs.common.process.clock import Clock
from libs.common.transport.bus import Bus
from services.scheduler.explain.explain import explain, no_answer
from services.scheduler.explain.upcoming import UpcomingAsk, no_upcoming, upcoming
from services.scheduler.questions.aside import Aside, forked
from services.scheduler.questions.past import DEADLINE_PART, Past, Question
from services.scheduler.questions.what_if import WhatIfAsk, not_found, what_if
from services.scheduler.questions.why_model import WhyAsk, explain_model
from services.scheduler.state.state import State


class QuestionDesk:
    """The handlers of the questions. `state` returns the present working state."""

    def __init__(self, state: Callable[[], State], clock: Clock, ask_past_ms: int) -> None:
        self.state = state
        self.clock = clock
        deadline_s = ask_past_ms / 1_000 * DEADLINE_PART
        self.aside = Aside(deadline_s)
        self.past = Past(deadline_s=deadline_s)

    async def listen(self, bus: Bus) -> None:
        """Answer the questions from now on."""
        for verb, handler in (
            ("why", self.on_why),
            ("whatif", self.on_what_if),
            ("upcoming", self.on_upcoming),
        ):
            await bus.subscribe(subjects.ask_scheduler(verb), handler, concurrent=True)

    async def on_upcoming(self, subject: str, data: bytes) -> bytes:
        """Answer in which order jobs wait, and when they are expected to start."""
        ask = msgspec.msgpack.decode(data, type=UpcomingAsk)
        return await self.aside.answer(
            lambda: msgspec.json.encode(upcoming(self.state(), ask)),
            lambda text: msgspec.json.encode(no_upcoming(text, self.state().seq)),
        )

    async def on_what_if(self, subject: str, data: bytes) -> bytes:
        """Answer whether a job would start now."""
        began = self.clock.boot_ns()
        ask = msgspec.msgpack.decode(data, type=WhatIfAsk)

        def answer() -> bytes:
            self.state().asker = ask.asker  # in a child
            return msgspec.json.encode(
                what_if(self.state(), ask, forked)
                | {"decision_latency_us": (self.clock.boot_ns() - began) / 1_000}
            )

        def no_answer_because(text: str) -> bytes:
            return msgspec.json.encode(
                not_found(text, self.state().seq)
                | {"decision_latency_us": (self.clock.boot_ns() - began) / 1_000}
            )

        return await self.aside.answer(answer, no_answer_because)

    async def on_why(self, subject: str, data: bytes) -> bytes | None:
        """Answer why a job or a model waits."""
        ask = msgspec.msgpack.decode(data, type=WhyAsk)
        if ask.at:
            return await self.past.answer(Question(ask.at, ask.job_id, ask.asker))
        return await self.aside.answer(
            lambda: self._why(ask), lambda text: self._why_not(ask, text)
        )

    def _why(self, ask: WhyAsk) -> bytes:
        """Return the answer as JSON. Runs in a child process, because it changes the state."""
        self.state().asker = ask.asker
        answer = (
            explain_model(self.state(), ask.model, forked)
            if ask.model
            else explain(self.state(), ask.job_id, forked)
        )
        return msgspec.json.encode(answer)

    def _why_not(self, ask: WhyAsk, text: str) -> bytes:
        """Return an answer of the same form that says why there is none."""
        return msgspec.json.encode(
            no_answer(ask.job_id, "unknown", text, self.state().seq)
            | ({"model": ask.model} if ask.model else {})
        )
