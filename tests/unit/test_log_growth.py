"""Growth of the log, the days that it has room, and what an operator is told."""

from services.api_gateway.control_plane.growth import (
    DAY_NS,
    MEASURED_MIN_NS,
    SAMPLE_NS,
    SAMPLES_MAX,
    Growth,
    days_left,
    warning,
)

GIB = 1 << 30
T0 = 5 * DAY_NS


def test_growth_is_measured_over_the_samples_of_a_day() -> None:
    growth = Growth()
    for number in range(2 * SAMPLES_MAX):
        growth.note(T0 + number * SAMPLE_NS, number * 1_000)
    now = T0 + 2 * SAMPLES_MAX * SAMPLE_NS
    size = 2 * SAMPLES_MAX * 1_000
    assert growth.per_day(now, size, 0) == SAMPLES_MAX * 1_000
    assert len(growth.samples) == SAMPLES_MAX


def test_more_notes_than_samples_change_nothing() -> None:
    growth = Growth()
    growth.note(T0, 0)
    growth.note(T0 + SAMPLE_NS - 1, 500)
    assert list(growth.samples) == [(T0, 0)]


def test_before_there_are_samples_the_age_of_the_log_counts_and_without_both_nothing_is_known() -> (
    None
):
    growth = Growth()
    assert growth.per_day(T0, 100, MEASURED_MIN_NS - 1) is None
    assert growth.per_day(T0, 100, DAY_NS // 2) == 200
    growth.note(T0, 100)
    assert growth.per_day(T0 + MEASURED_MIN_NS - 1, 200, 0) is None
    assert growth.per_day(T0 + MEASURED_MIN_NS, 200, 0) == 100 * DAY_NS // MEASURED_MIN_NS


def test_log_that_shrinks_or_has_no_bound_has_room_for_ever() -> None:
    growth = Growth()
    growth.note(T0, 500)
    assert growth.per_day(T0 + MEASURED_MIN_NS, 400, 0) == 0
    assert days_left(500, GIB, 0) is None
    assert days_left(500, 0, 10) is None
    assert days_left(500, GIB, None) is None


def test_days_left_are_the_room_over_the_growth() -> None:
    assert days_left(400, 1_000, 80) == 7.5
    assert days_left(2_000, 1_000, 80) == 0


def test_operator_is_warned_at_70_and_at_85_percent() -> None:
    assert warning(69, 100) == "" and warning(1, 0) == ""
    assert "70 % full: make room soon" in warning(70, 100)
    assert "85 % full: make room now" in warning(85, 100)
