"""The spans of attempts on this node: start, run and release (docs/spans.md).

An agent that starts again does not know when the attempts that it adopts began, so it records no
span of those. Tests: tests/unit/test_attempt_spans.py.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.facts import AnyFact, JobFinished, JobRefused, JobReleased, JobStarted
from libs.common.messages import StartOrder
from libs.common.model import attempt_key
from libs.common.spans import job_spans, recording
from libs.common.spans.recording import CONSUMER, INTERNAL, Recorder, Value

# Attempts that are followed at once. Beyond it the oldest is followed no longer.
FOLLOWED_MAX: Final = 4_096
MS: Final = 1_000_000


class _Followed(msgspec.Struct):
    """One attempt: its order, and when its present span began."""

    order: StartOrder
    since_ns: int


class AttemptSpans:
    """The traced attempts that this agent has begun to start."""

    def __init__(self) -> None:
        self.followed: dict[str, _Followed] = {}

    def begun(self, order: StartOrder, now_ns: int) -> None:
        """Follow an attempt that the agent begins to start."""
        if not order.trace or recording.active is None:
            return
        if len(self.followed) >= FOLLOWED_MAX:
            del self.followed[next(iter(self.followed))]
        self.followed[attempt_key(order.job_id, order.attempt)] = _Followed(order, now_ns)

    def recorded(self, facts: Iterable[AnyFact], now_ns: int) -> None:
        """Record the spans that these facts end."""
        recorder = recording.active
        if recorder is None or not self.followed:
            return
        for fact in facts:
            if not isinstance(fact, JobStarted | JobFinished | JobReleased | JobRefused):
                continue
            found = self.followed.get(attempt_key(fact.job_id, fact.attempt))
            if found is not None:
                self._record(recorder, found, fact, now_ns)

    def _record(
        self,
        recorder: Recorder,
        found: _Followed,
        fact: JobStarted | JobFinished | JobReleased | JobRefused,
        now_ns: int,
    ) -> None:
        end_ns, error = now_ns, ""
        more: dict[str, Value] = {"muster.job.rank": found.order.rank}
        if isinstance(fact, JobStarted):
            name = job_spans.START
            more["process.pid"] = fact.pid
        elif isinstance(fact, JobRefused):
            name, error = job_spans.START, fact.reason
        elif isinstance(fact, JobFinished):
            name = job_spans.RUN
            if fact.run_ms:
                end_ns = min(now_ns, found.since_ns + fact.run_ms * MS)
            if fact.exit_code is not None:
                more["process.exit.code"] = fact.exit_code
            error = "" if fact.exit_code == 0 else fact.detail or fact.reason
        else:
            name = job_spans.RELEASE
            more["muster.release.checks"] = ",".join(fact.checks)
        span = job_spans.of_attempt(
            name,
            found.order.trace,
            fact.job_id,
            fact.attempt,
            start_ns=found.since_ns,
            end_ns=end_ns,
            attributes=more,
            node_id=fact.node_id,
            kind=CONSUMER if name == job_spans.START else INTERNAL,
            error=error,
        )
        if span is not None:
            recorder.record(span)
        found.since_ns = end_ns
        if isinstance(fact, JobReleased | JobRefused):
            del self.followed[attempt_key(fact.job_id, fact.attempt)]
