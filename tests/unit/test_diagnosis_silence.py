"""How long a job shows no sign of progress, and how many errors links had lately."""

from services.node_agent.diagnosis.silence import SECOND_NS, WINDOW_NS, LinkErrors, Silence

KEY = "job-1.1"


def test_silence_counts_from_the_last_change() -> None:
    silence = Silence()
    assert silence.silent_s(KEY, 0) == -1
    silence.note(KEY, (1,), 0)
    silence.note(KEY, (1,), 5 * SECOND_NS)
    assert silence.silent_s(KEY, 9 * SECOND_NS) == 9
    silence.note(KEY, (2,), 9 * SECOND_NS)
    assert silence.silent_s(KEY, 9 * SECOND_NS) == 0


def test_a_gateway_is_told_after_the_time_and_again_each_such_time() -> None:
    silence = Silence()
    silence.note(KEY, (1,), 0)
    due = [at_s for at_s in range(40) if silence.is_due(KEY, at_s * SECOND_NS, 10)]
    assert due == [10, 20, 30]
    assert not silence.is_due(KEY, 99 * SECOND_NS, 0)


def test_a_gateway_is_told_anew_after_progress() -> None:
    silence = Silence()
    silence.note(KEY, (1,), 0)
    assert silence.is_due(KEY, 10 * SECOND_NS, 10)
    silence.note(KEY, (2,), 11 * SECOND_NS)
    assert not silence.is_due(KEY, 20 * SECOND_NS, 10)
    assert silence.is_due(KEY, 21 * SECOND_NS, 10)


def test_signs_that_a_diagnosis_changed_are_no_progress() -> None:
    silence = Silence()
    silence.excuse(KEY, (1,), (2,))
    assert silence.signs == {}
    silence.note(KEY, (1,), 0)
    silence.excuse(KEY, (1,), (2,))
    silence.note(KEY, (2,), 5 * SECOND_NS)
    assert silence.silent_s(KEY, 9 * SECOND_NS) == 9


def test_progress_before_a_diagnosis_counts() -> None:
    silence = Silence()
    silence.note(KEY, (1,), 0)
    silence.excuse(KEY, (2,), (3,))
    silence.note(KEY, (3,), 5 * SECOND_NS)
    assert silence.silent_s(KEY, 9 * SECOND_NS) == 4


def test_attempts_that_are_over_are_forgotten() -> None:
    silence = Silence()
    silence.note(KEY, (1,), 0)
    assert silence.is_due(KEY, 10 * SECOND_NS, 10)
    silence.keep([])
    assert (silence.signs, silence.told_ns) == ({}, {})


def test_link_errors_count_within_the_window() -> None:
    links = LinkErrors()
    assert links.rise("GPU-1", 0) == -1
    links.note({"GPU-1": 5}, 0)
    links.note({"GPU-1": 25}, SECOND_NS)
    assert links.rise("GPU-1", 0) == 20
    links.note({"GPU-1": 26}, SECOND_NS + WINDOW_NS)
    assert links.rise("GPU-1", 0) == 1


def test_link_errors_before_a_job_do_not_count() -> None:
    links = LinkErrors()
    for at_s, count in enumerate((0, 500, 500, 503)):
        links.note({"GPU-1": count}, at_s * SECOND_NS)
    assert links.rise("GPU-1", 2 * SECOND_NS) == 3
    assert links.rise("GPU-1", -1) == 503


def test_a_counter_that_began_anew_has_no_rise() -> None:
    links = LinkErrors()
    links.note({"GPU-1": 500}, 0)
    links.note({"GPU-1": 2}, SECOND_NS)
    assert links.rise("GPU-1", 0) == 0
