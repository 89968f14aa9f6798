"""The life tables: every state can be reached, ended ones are final, and what they add up to
agrees.
"""

import pytest

from libs.common.life import gpu_life, job_life, kept_life, node_life
from libs.common.life.gpu_life import HEALTH_LIFE, SHOWN, shown
from libs.common.life.job_life import ENDED, JOB_LIFE, LIVE, MEMBER_ENDED, MEMBER_LIFE, MEMBER_OVER
from libs.common.life.node_life import NODE_LIFE

Table = dict[tuple[str, str], str]
TABLES = {
    "job": (JOB_LIFE, ""),
    "member": (MEMBER_LIFE, ""),
    "gpu": (HEALTH_LIFE, gpu_life.HEALTHY),
    "node": (NODE_LIFE, ""),
    "kept": (kept_life.KEPT_LIFE, ""),
}


def reached(table: Table, start: str) -> list[str]:
    found = [start]
    for state in found:
        found += dict.fromkeys(
            after for (before, _), after in table.items() if before == state and after not in found
        )
    return found


def walk(*events: str) -> str:
    state = ""
    for event in events:
        state = JOB_LIFE[state, event]
    return state


@pytest.mark.parametrize("name", TABLES)
def test_every_state_can_be_reached(name: str) -> None:
    table, start = TABLES[name]
    named = {state: None for (before, _), after in table.items() for state in (before, after)}
    assert sorted(reached(table, start)) == sorted(named)


def test_every_state_of_a_job_is_live_or_ended_and_each_live_one_waits_for_somebody() -> None:
    assert sorted(LIVE + ENDED) == sorted(reached(JOB_LIFE, "")[1:])
    assert tuple(job_life.WAITS_FOR) == LIVE


def test_an_ended_job_sees_nothing_more() -> None:
    assert [row for row in JOB_LIFE if row[0] in ENDED] == []


def test_every_live_job_can_still_end() -> None:
    assert [
        state for state in LIVE if not any(end in ENDED for end in reached(JOB_LIFE, state))
    ] == []


def test_a_member_that_is_over_can_only_be_lost() -> None:
    assert [
        (row, after)
        for row, after in MEMBER_LIFE.items()
        if row[0] in MEMBER_OVER and after != job_life.LOST
    ] == []


def test_a_member_that_ended_never_runs_again() -> None:
    assert [
        row
        for row, after in MEMBER_LIFE.items()
        if row[0] in MEMBER_ENDED and after not in MEMBER_ENDED
    ] == []


def test_a_job_walks_to_its_end() -> None:
    begin = ("job.submitted", "job.admitted", "job.queued", "job.placed")
    assert (
        walk(*begin, "members.started", "members.ended", "job.closed:completed")
        == job_life.COMPLETED
    )
    assert (
        walk(
            *begin,
            "members.ended",
            "job.requeued",
            "job.placed",
            "members.ended",
            "job.closed:failed",
        )
        == job_life.FAILED
    )
    assert walk(*begin[:3], "job.closed:cancelled") == job_life.CANCELLED
    assert walk("job.submitted", "job.rejected") == job_life.REJECTED


def test_a_node_that_was_lost_comes_back_only_by_the_schedulers_word() -> None:
    back = [
        event
        for (before, event), after in NODE_LIFE.items()
        if before == node_life.UNREACHABLE and after in node_life.USABLE
    ]
    assert back == ["node.returned", "node.returned:hurt"]


def test_only_harmful_events_degrade_a_node_and_none_of_them_makes_it_healthy() -> None:
    hurt = [after for (_, event), after in NODE_LIFE.items() if event.endswith(":hurt")]
    plain = [
        (before, after)
        for (before, event), after in NODE_LIFE.items()
        if not event.endswith(":hurt")
    ]
    assert node_life.HEALTHY not in hurt
    assert [row for row in plain if row[1] == node_life.DEGRADED] == []


def test_every_use_and_health_is_shown_by_one_word() -> None:
    uses = (gpu_life.AVAILABLE, gpu_life.ALLOCATED, gpu_life.IN_USE)
    assert sorted(SHOWN) == sorted(
        (use, health) for use in uses for health in reached(HEALTH_LIFE, gpu_life.HEALTHY)
    )


@pytest.mark.parametrize(
    ("reason", "word"), [("quarantined", "ERROR"), ("draining", "MAINTENANCE"), ("xid", "DEGRADED")]
)
def test_a_reason_that_people_must_see_beats_use_and_health(reason: str, word: str) -> None:
    assert shown(gpu_life.AVAILABLE, gpu_life.DEGRADED, reason) == word
