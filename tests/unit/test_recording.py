"""The queue of spans: bounded, and the oldest go first."""

from libs.common.spans.recording import QUEUE_MAX, Recorder, Span


def span(number: int) -> Span:
    return Span("s", f"{1:032x}", f"{number + 1:016x}", "", number, number)


def test_spans_are_taken_in_their_order() -> None:
    recorder = Recorder()
    recorder.record_all([span(0), span(1), span(2)])
    assert recorder.take(2) == [span(0), span(1)]
    assert recorder.take(2) == [span(2)] and recorder.take(2) == []


def test_a_full_queue_drops_the_newest_and_counts_them() -> None:
    recorder = Recorder()
    recorder.record_all(span(number) for number in range(QUEUE_MAX + 5))
    assert len(recorder.queue) == QUEUE_MAX and recorder.dropped == 5
    assert recorder.take(1) == [span(0)]
