"""Autoscaling: the law, its memory, and what holds a number back."""

from services.scheduler.models import autoscaling
from services.scheduler.models.autoscaling import (
    SECOND_NS,
    Autoscaling,
    Scaling,
    Signals,
    Targets,
)

MS_NS = 1_000_000
TARGETS = Targets(least=0, most=64, first_token_ns=500 * MS_NS, per_token_ns=40 * MS_NS)
CALM = Signals(
    replicas=10,
    ready=10,
    first_token_p90_ns=250 * MS_NS,
    per_token_p90_ns=18 * MS_NS,
    waiting_tokens=0,
    outstanding=5,
    replica_tokens_per_s=1_000,
)


def after(law: Autoscaling, signals: Signals, seconds: int, from_s: int = 0) -> Scaling:
    """Give the same signals once a second and return the last answer."""
    return [law.decide(signals, (from_s + each) * SECOND_NS) for each in range(seconds + 1)][-1]


def test_a_pressure_between_the_bounds_changes_nothing() -> None:
    assert after(Autoscaling(TARGETS), CALM, 300) == Scaling(10, 500, 10, 0, "")


def test_pressure_above_its_bound_adds_replicas_after_a_while() -> None:
    law, busy = Autoscaling(TARGETS), CALM._replace(first_token_p90_ns=550 * MS_NS)
    assert after(law, busy, 30) == Scaling(10, 1_100, 20, 0, autoscaling.NOT_YET)
    assert after(law, busy, 0, 31).replicas == 20


def test_the_larger_of_the_two_ratios_counts() -> None:
    slow = CALM._replace(per_token_p90_ns=44 * MS_NS)
    assert Autoscaling(TARGETS).decide(slow, 0).by_pressure == 20
    untargeted = Autoscaling(TARGETS._replace(per_token_ns=0)).decide(slow, 0)
    assert untargeted.by_pressure == 10


def test_pressure_is_clamped_and_a_mean() -> None:
    law = Autoscaling(TARGETS)
    assert law.decide(CALM._replace(first_token_p90_ns=99_000 * MS_NS), 0).pressure_milli == 2_000
    assert (
        law.decide(CALM._replace(first_token_p90_ns=0, per_token_p90_ns=0), 1).pressure_milli
        == 1_000
    )
    calm = after(law, CALM, 1, 60)
    assert calm.pressure_milli == 500, "both are older than 45 s"


def test_replicas_that_start_count_as_an_answer_to_the_pressure() -> None:
    starting = CALM._replace(ready=5, first_token_p90_ns=550 * MS_NS)
    assert Autoscaling(TARGETS).decide(starting, 0).by_pressure == 10


def test_low_pressure_removes_one_replica_at_a_time_and_late() -> None:
    law, idle = Autoscaling(TARGETS), CALM._replace(first_token_p90_ns=0, per_token_p90_ns=0)
    assert law.decide(idle, 0) == Scaling(10, 0, 1, 0, autoscaling.NOT_YET)
    assert after(law, idle, 180).held_by == autoscaling.NOT_YET
    assert after(law, idle, 0, 181) == Scaling(9, 0, 1, 0, autoscaling.SHRINKS_SLOWLY)
    nine = idle._replace(replicas=9, ready=9)
    held = after(law, nine, 100, 182)
    assert held == Scaling(9, 0, 1, 0, autoscaling.SHRINKS_SLOWLY)
    assert after(law, nine, 0, 301).replicas == 8


def test_one_replica_less_is_what_the_law_may_want() -> None:
    law, calm = (
        Autoscaling(TARGETS),
        CALM._replace(first_token_p90_ns=180 * MS_NS, per_token_p90_ns=0),
    )
    assert after(law, calm, 181) == Scaling(9, 360, 9, 0, "")


def test_tokens_that_wait_wake_a_model_without_replicas_at_once() -> None:
    asleep = CALM._replace(
        replicas=0, ready=0, waiting_tokens=1, replica_tokens_per_s=0, outstanding=1
    )
    assert Autoscaling(TARGETS).decide(asleep, 0) == Scaling(1, 500, 0, 1, "")
    known = asleep._replace(waiting_tokens=25_000, replica_tokens_per_s=1_000)
    assert Autoscaling(TARGETS).decide(known, 0).replicas == 3


def test_a_model_at_zero_without_requests_stays_there() -> None:
    asleep = CALM._replace(replicas=0, ready=0, outstanding=0)
    assert after(Autoscaling(TARGETS), asleep, 400).replicas == 0


def test_an_idle_model_loses_its_last_replica_only_if_it_may() -> None:
    idle = CALM._replace(
        replicas=1, ready=1, first_token_p90_ns=0, per_token_p90_ns=0, outstanding=0
    )
    law = Autoscaling(TARGETS)
    assert after(law, idle, 299).replicas == 1
    assert after(law, idle, 0, 300) == Scaling(0, 0, 0, 0, "")
    kept = Autoscaling(TARGETS._replace(least=1))
    assert after(kept, idle, 2_000).replicas == 1


def test_a_model_is_idle_since_its_last_request_not_since_the_last_report_that_saw_one() -> None:
    idle = CALM._replace(replicas=1, ready=1, first_token_p90_ns=0, outstanding=0)
    law = Autoscaling(TARGETS)
    assert after(law, idle._replace(idle_ns=0), 400).replicas == 1
    assert after(law, idle._replace(idle_ns=100 * SECOND_NS), 0, 500).replicas == 1
    assert after(law, idle._replace(idle_ns=299 * SECOND_NS), 0, 699).replicas == 1
    assert after(law, idle._replace(idle_ns=300 * SECOND_NS), 0, 700).replicas == 0


def test_an_idle_time_below_zero_counts_as_now() -> None:
    idle = CALM._replace(replicas=1, ready=1, first_token_p90_ns=0, outstanding=0)
    law = Autoscaling(TARGETS)
    law.decide(idle._replace(idle_ns=-(1 << 62)), 0)
    law.decide(idle._replace(idle_ns=-(1 << 62)), SECOND_NS)
    assert after(law, idle, 0, 301).replicas == 0


def test_an_old_request_does_not_put_a_model_to_sleep_that_the_law_saw_busy() -> None:
    law = Autoscaling(TARGETS)
    law.decide(CALM._replace(replicas=1, ready=1, outstanding=1), 0)
    idle = CALM._replace(replicas=1, ready=1, first_token_p90_ns=0, outstanding=0)
    assert after(law, idle._replace(idle_ns=900 * SECOND_NS), 299).replicas == 1


def test_growth_is_bounded_by_what_ran_a_minute_ago() -> None:
    asleep = CALM._replace(replicas=0, ready=0, waiting_tokens=1 << 40)
    assert Autoscaling(TARGETS).decide(asleep, 0).held_by == autoscaling.GROWS_SLOWLY
    assert Autoscaling(TARGETS).decide(asleep, 0).replicas == 4
    law, flooded = Autoscaling(TARGETS), CALM._replace(waiting_tokens=1 << 40)
    assert after(law, flooded, 31).replicas == 20
    grown = flooded._replace(replicas=20)
    assert after(law, grown, 0, 32) == Scaling(
        20, 500, 20, (1 << 40) // 10_000 + 1, autoscaling.GROWS_SLOWLY
    )


def test_the_owners_bounds_hold() -> None:
    narrow = Targets(least=2, most=12, first_token_ns=500 * MS_NS)
    busy = CALM._replace(first_token_p90_ns=900 * MS_NS)
    most = after(Autoscaling(narrow), busy, 40)
    assert (most.replicas, most.held_by) == (12, autoscaling.AT_MOST)
    none = CALM._replace(replicas=0, ready=0)
    least = Autoscaling(narrow).decide(none, 0)
    assert (least.replicas, least.held_by) == (2, autoscaling.AT_LEAST)
    many = Autoscaling(narrow._replace(most=4)).decide(CALM, 0)
    assert (many.replicas, many.held_by) == (4, autoscaling.AT_MOST)


def test_a_smaller_need_within_the_window_stops_growth() -> None:
    law, flooded = Autoscaling(TARGETS), CALM._replace(waiting_tokens=150_000)
    after(law, flooded, 20)
    law.decide(CALM, 21 * SECOND_NS)
    assert after(law, flooded, 29, 22) == Scaling(10, 500, 10, 15, autoscaling.NOT_YET)
    assert after(law, flooded, 0, 52) == Scaling(15, 500, 10, 15, "")
