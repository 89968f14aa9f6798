"""An agent's spans of an attempt: start, run and release follow each other."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.spans import recording
from libs.common.spans.recording import Recorder
from services.node_agent.jobs import attempt_spans
from services.node_agent.jobs.attempt_spans import AttemptSpans
from tests.given import finished, released, started
from tests.unit.test_job_spans import CONTEXT, JOB, S, order


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recording.active = Recorder()
    yield recording.active
    recording.active = None


def test_start_run_and_release_follow_each_other(recorder: Recorder) -> None:
    spans = AttemptSpans()
    spans.begun(order(CONTEXT), S)
    spans.recorded([started("j1", "n1")], 2 * S)
    spans.recorded([finished("j1", "n1", exit_code=3, run_ms=1_000)], 9 * S)
    spans.recorded([released("j1", "n1")], 10 * S)
    found = recorder.take(9)
    assert [(each.name, each.start_ns, each.end_ns) for each in found] == [
        ("muster.job.start", S, 2 * S),
        ("muster.job.run", 2 * S, 3 * S),
        ("muster.job.release", 3 * S, 10 * S),
    ]
    assert found[1].error == "exited" and found[1].attributes["process.exit.code"] == 3
    assert spans.followed == {}


def test_a_refused_start_is_a_failed_span(recorder: Recorder) -> None:
    spans = AttemptSpans()
    spans.begun(order(CONTEXT), S)
    refused = f.JobRefused(job_id=JOB, attempt=1, node_id=started("j1", "n1").node_id, reason="no")
    spans.recorded([refused], 2 * S)
    (found,) = recorder.take(9)
    assert (found.name, found.error) == ("muster.job.start", "no")


def test_untraced_and_adopted_attempts_have_no_spans(recorder: Recorder) -> None:
    spans = AttemptSpans()
    spans.begun(order(""), S)
    spans.recorded([started("j1", "n1"), released("j1", "n1")], 2 * S)
    spans.begun(order(CONTEXT), S)
    spans.recorded([started("j2", "n1")], 2 * S)
    assert recorder.take(9) == []


def test_attempts_that_are_followed_are_bounded(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_spans, "FOLLOWED_MAX", 2)
    spans = AttemptSpans()
    for attempt in range(1, 4):
        spans.begun(replace(order(CONTEXT), attempt=attempt), S)
    assert list(spans.followed) == ["j1.2", "j1.3"]


def test_nothing_is_followed_while_spans_are_off() -> None:
    spans = AttemptSpans()
    spans.begun(order(CONTEXT), S)
    spans.recorded([started("j1", "n1")], 2 * S)
    assert spans.followed == {}
