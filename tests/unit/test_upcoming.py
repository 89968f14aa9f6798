"""The order of the queue with expected starts, as each asker may see it."""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, TenantId
from services.scheduler.explain import upcoming as module
from services.scheduler.explain.upcoming import UpcomingAsk, no_upcoming, upcoming
from tests.given import given, member, placed, registered, started, waiting


def busy(job: str, gpu: int, **fields: Any) -> list[AnyFact]:
    return [*waiting(job, **fields), placed(job, member("a", gpu)), started(job, "a")]


def shown(*history: Any, **ask: Any) -> dict[str, Any]:
    found: dict[str, Any] = upcoming(given(*history), UpcomingAsk(**{"asker": None, **ask}))
    return found


def rows(found: dict[str, Any]) -> list[tuple[int, str, int | None]]:
    return [(row["position"], row["job_id"], row["in_s"]) for row in found["jobs"]]


def test_jobs_stand_in_the_order_of_decisions_with_their_expected_starts() -> None:
    found = shown(
        registered("a", 1),
        busy("x", 0, time_limit_s=100),
        waiting("later", time_limit_s=50),
        waiting("first", priority=90, time_limit_s=50),
        waiting("never", gpus=4),
    )
    assert rows(found) == [(1, "first", 100), (2, "later", 150), (3, "never", None)]
    assert (found["total"], found["next"]) == (3, None)


def test_a_job_that_fits_starts_now() -> None:
    assert rows(shown(registered("a", 1), waiting("j"))) == [(1, "j", 0)]


def test_no_start_is_expected_where_no_end_is() -> None:
    assert rows(shown(registered("a", 1), busy("x", 0), waiting("j"))) == [(1, "j", None)]


def test_held_jobs_and_jobs_of_other_queues_are_not_in_the_line() -> None:
    history = [
        registered("a", 1),
        busy("x", 0),
        f.QueueSet(queue="research", policy="priority"),
        waiting("held", hold=True),
        waiting("other", queue="research"),
        waiting("j"),
    ]
    assert [row[1] for row in rows(shown(*history, queue="default"))] == ["j"]
    assert len(rows(shown(*history))) == 2


def test_a_page_ends_where_its_limit_says_and_the_next_goes_on() -> None:
    history = [registered("a", 1), busy("x", 0), *(waiting(f"j{n}") for n in range(3))]
    first = shown(*history, limit=2)
    assert [row[0] for row in rows(first)] == [1, 2] and first["next"] == 2
    rest = shown(*history, limit=2, after=2)
    assert [row[0] for row in rows(rest)] == [3] and rest["next"] is None


def test_a_tenant_sees_its_own_jobs_at_their_places_among_all() -> None:
    theirs, mine = waiting("theirs"), waiting("mine")
    history = [
        registered("a", 1),
        busy("x", 0),
        replace(theirs[0], tenant=TenantId("red")),
        *theirs[1:],
        replace(mine[0], tenant=TenantId("blue")),
        *mine[1:],
    ]
    found = shown(*history, asker=TenantId("blue"))
    assert rows(found) == [(2, "mine", None)]
    assert found["total"] == 2


def test_the_course_of_the_future_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDS_MAX", 1)
    found = shown(registered("a", 1), busy("x", 0, time_limit_s=9), waiting("late"))
    assert rows(found) == [(1, "late", None)]


def test_no_answer_has_the_same_form() -> None:
    assert no_upcoming("busy", 7).keys() == shown(registered("a", 1)).keys()
    assert JobId("j") not in no_upcoming("busy", 7)["jobs"]  # type: ignore[operator]
