"""Changes of the state by each fact about a job, and what must not change.

`History.say` answers whether a fact took effect, and holds that one that did not changed nothing.
"""

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact, Unknown
from libs.common.folds import job_fold
from libs.common.life import job_life
from libs.common.model import TenantId
from libs.common.state.cluster import live_jobs
from tests.history import (
    History,
    begun,
    closed,
    finished,
    job,
    lost,
    member,
    placed,
    ref,
    refused,
    registered,
    released,
    requeued,
    stamp_of,
    started,
    submitted,
)

OTHER_SUBJECTS = (
    "facts.gateway.a",
    "facts.quota",
    "facts.scheduler",
    "facts.node.n1",
    "facts.node.n2",
)


def cancel(name: str, grace_s: int = 10) -> f.CancelRequested:
    return f.CancelRequested(job_id=job(name), grace_s=grace_s, user="ada")


def stop(name: str, attempt: int = 1, reason: str = "time_limit") -> f.JobStopOrdered:
    return f.JobStopOrdered(job_id=job(name), attempt=attempt, reason=reason)


def running(*names: str) -> History:
    """One gang job `j` with a member on each node, all of them running; nodes n1, n2 ..."""
    history = gang(len(names) or 1)
    assert history.say(*(started("j", str(node)) for node in history.cluster.nodes))
    return history


def gang(nodes: int = 2) -> History:
    """One job `j`, placed on every node, nothing started yet."""
    history = begun(nodes)
    history.queue("j", nodes=nodes)
    assert history.say(
        placed("j", *(member(f"n{n}", f"n{n}g1", rank=n - 1) for n in range(1, nodes + 1)))
    )
    return history


def waiting(history: History) -> int:
    return history.cluster.tenants[TenantId("default")].waiting


def test_a_job_lives_from_submission_to_its_end() -> None:
    history, states = begun(), []
    for fact in (
        submitted("j"),
        f.JobAdmitted(job_id=job("j")),
        f.JobQueued(job_id=job("j")),
        placed("j", member("n1", "n1g1")),
        started("j", "n1"),
        finished("j", "n1", exit_code=0),
        released("j", "n1"),
        closed("j"),
    ):
        assert history.say(fact)
        states.append(history.job("j").state)
    assert states == [
        "pending",
        "pending",
        "queued",
        "placed",
        "running",
        "releasing",
        "releasing",
        "completed",
    ]
    assert (history.holds("n1g1"), waiting(history)) == ({}, 0)


def test_a_job_is_submitted_once() -> None:
    history = begun()
    history.queue("j")
    assert not history.say(submitted("j", gpus=8))


def test_a_job_is_queued_only_when_it_was_admitted() -> None:
    history = begun()
    assert history.say(submitted("j"))
    assert not history.say(f.JobQueued(job_id=job("j")))


def test_a_rejected_job_waits_no_longer_and_an_admitted_one_cannot_be_rejected() -> None:
    history = begun()
    history.say(submitted("j"), submitted("k"), f.JobAdmitted(job_id=job("k")))
    assert history.say(f.JobRejected(job_id=job("j"), reason="too many"))
    assert not history.say(f.JobRejected(job_id=job("k"), reason="too many"))
    assert (history.job("j").state, history.job("j").reason, waiting(history)) == (
        "rejected",
        "too many",
        1,
    )


def test_of_several_cancels_the_shortest_grace_counts() -> None:
    history = begun()
    history.queue("j")
    assert [history.say(cancel("j", grace)) for grace in (10, 30, 0, 0, 10)] == [
        True,
        False,
        True,
        False,
        False,
    ]
    assert history.job("j").cancel.grace_s == 0  # type: ignore[union-attr]


def test_a_gang_runs_when_no_member_waits_to_start_any_more() -> None:
    history = gang(3)
    states = []
    for fact in (started("j", "n1"), finished("j", "n2", exit_code=1), started("j", "n3")):
        history.say(fact)
        states.append(history.job("j").state)
    assert states == ["placed", "placed", "running"]


def test_a_gang_is_releasing_when_its_last_member_ended() -> None:
    history = running("n1", "n2")
    states = []
    for fact in (finished("j", "n1"), released("j", "n1"), finished("j", "n2")):
        history.say(fact)
        states.append(history.job("j").state)
    assert states == ["running", "running", "releasing"]


def test_a_member_that_refuses_gives_its_devices_back_at_once() -> None:
    history = gang()
    assert history.say(refused("j", "n1"))
    assert (history.members("j"), history.holds("n1g1"), history.holds("n2g1")) == (
        {"n1": "refused", "n2": "placed"},
        {},
        {"j.1": 100},
    )


def test_requeued_job_forgets_its_attempt_and_counts_its_retry() -> None:
    history = running()
    history.say(stop("j"), finished("j", "n1", exit_code=None), released("j", "n1"))
    assert history.say(f.JobRequeued(job_id=job("j"), attempt=1, reason="failed", counted=True))
    after = history.job("j")
    assert (after.state, after.attempt, after.retries_used, after.members, after.stop_reason) == (
        "queued",
        2,
        1,
        {},
        "",
    )
    assert (waiting(history), history.holds("n1g1"), history.cluster.nodes["n1"].members) == (
        1,
        {},
        {},
    )  # type: ignore[index]


@pytest.mark.parametrize("shorter_first", [True, False])
def test_the_first_reason_to_stop_is_kept_and_the_shortest_grace_counts(
    shorter_first: bool,
) -> None:
    history = running()
    shorter = f.JobStopOrdered(job_id=job("j"), attempt=1, reason="cancelled", signal=9, grace_ms=0)
    first, second = (shorter, stop("j")) if shorter_first else (stop("j"), shorter)
    assert history.say(first, second)
    after = history.job("j")
    assert (after.stop_reason, after.stop_signal, after.stop_grace_ms) == (first.reason, 9, 0)


def late(attempt: int) -> list[AnyFact]:
    """Whatever can be said of an attempt."""
    return [
        placed("j", member("n1", "n1g1"), attempt=attempt),
        started("j", "n1", attempt),
        finished("j", "n1", 0, attempt),
        released("j", "n1", attempt),
        refused("j", "n1", attempt),
        stop("j", attempt),
        requeued("j", attempt),
        closed("j", "failed", attempt),
    ]


@pytest.mark.parametrize("fact", late(1), ids=f.kind_of)
def test_a_fact_of_an_attempt_that_was_requeued_changes_nothing(fact: AnyFact) -> None:
    history = running()
    history.say(finished("j", "n1"), released("j", "n1"), requeued("j"))
    assert not history.say(fact)
    assert history.say(placed("j", member("n1", "n1g1"), attempt=2))
    assert not history.say(fact)


@pytest.mark.parametrize(
    "fact",
    [*late(1), *late(2), cancel("j"), submitted("j"), f.JobAdmitted(job_id=job("j"))],
    ids=f.kind_of,
)
def test_a_fact_of_an_ended_job_changes_nothing(fact: AnyFact) -> None:
    history = running()
    history.say(finished("j", "n1"), released("j", "n1"), closed("j"))
    assert not history.say(fact)


@pytest.mark.parametrize(
    "fact", [*late(1), *late(7), cancel("j"), f.JobQueued(job_id=job("j"))], ids=f.kind_of
)
def test_fact_about_an_unknown_job_changes_nothing(fact: AnyFact) -> None:
    assert not begun().say(fact)


@pytest.mark.parametrize("fact", late(2), ids=f.kind_of)
def test_a_fact_of_an_attempt_that_is_not_yet_changes_nothing(fact: AnyFact) -> None:
    assert not running().say(fact)


@pytest.mark.parametrize(
    "fact",
    [started("j", "n2"), finished("j", "n2"), released("j", "n2"), refused("j", "n2")],
    ids=f.kind_of,
)
def test_a_node_without_a_member_of_the_attempt_has_nothing_to_say_of_it(fact: AnyFact) -> None:
    history = begun(2)
    history.queue("j")
    history.say(placed("j", member("n1", "n1g1")))
    assert not history.say(fact)


def test_repeated_fact_counts_once() -> None:
    history = running()
    assert not history.say(started("j", "n1"))
    assert [history.say(finished("j", "n1", exit_code=code)) for code in (0, 1)] == [True, False]
    assert [history.say(released("j", "n1")) for _ in range(2)] == [True, False]
    assert history.job("j").members["n1"].exit_code == 0  # type: ignore[index]


def test_devices_are_not_released_before_the_processes_ended() -> None:
    history = running()
    assert not history.say(released("j", "n1"))
    assert history.holds("n1g1") == {"j.1": 100}


def test_a_job_is_not_over_until_every_member_is_over() -> None:
    history = running("n1", "n2")
    history.say(finished("j", "n1"), finished("j", "n2"), released("j", "n1"))
    assert not history.say(closed("j"))
    assert not history.say(requeued("j"))
    assert history.say(released("j", "n2"))
    assert history.say(closed("j"))


@pytest.mark.parametrize("outcome", ["completed", "failed", "running", ""])
def test_waiting_job_cannot_complete(outcome: str) -> None:
    history = begun()
    history.queue("j")
    assert not history.say(closed("j", outcome))


@pytest.mark.parametrize(
    "fact",
    [*late(1), submitted("k"), cancel("j"), f.JobRejected(job_id=job("j"), reason="x")],
    ids=f.kind_of,
)
def test_a_writer_records_only_its_own_kinds(fact: AnyFact) -> None:
    history = gang(1)
    own = history.say(fact)
    for subject in OTHER_SUBJECTS:
        fresh = gang(1)
        if fresh.say(fact, subject=subject):
            assert own, f"{subject} said what its owner may not"
            assert stamp_of(subject, 1).writer == f.kind_of(fact) or subject in may_say(fact)


def may_say(fact: AnyFact) -> list[str]:
    owner = (
        f.GatewayFact.__args__,
        f.QuotaFact.__args__,
        f.SchedulerFact.__args__,
        f.NodeFact.__args__,
    )
    row = next(i for i, kinds in enumerate(owner) if type(fact) in kinds)
    return [
        ["facts.gateway.a"],
        ["facts.quota"],
        ["facts.scheduler"],
        [f"facts.node.{getattr(fact, 'node_id', '')}"],
    ][row]


def test_a_scheduler_of_an_older_term_changes_nothing() -> None:
    history = begun()
    history.queue("j")
    old = history.cluster.epoch
    assert history.say(f.TermBegan(instance="b"))
    assert not history.say(placed("j", member("n1", "n1g1")), epoch=old)
    assert history.say(placed("j", member("n1", "n1g1")))
    assert (history.cluster.leader, history.cluster.epoch > old) == ("b", True)


def test_a_fact_of_an_unknown_kind_is_counted_and_changes_nothing() -> None:
    history = begun()
    assert not history.say(Unknown(name="job.dreamt", raw=b"\x80"))


def test_ended_jobs_beyond_the_bound_leave_oldest_end_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_fold, "ENDED_JOBS_KEPT", 2)
    history = begun()
    for name in ("a", "b", "c", "d"):
        history.queue(name)
    history.say(*(closed(name, "cancelled") for name in ("c", "a", "d")))
    assert (list(history.cluster.jobs), list(history.cluster.ended)) == (
        ["a", "b", "d"],
        ["a", "d"],
    )
    assert job_life.ENDED.count(history.job("a").state) == 1


def test_job_that_left_the_state_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_fold, "ENDED_JOBS_KEPT", 0)
    history = running()
    history.say(finished("j", "n1"), released("j", "n1"), closed("j"))
    assert list(history.cluster.jobs) == []
    for fact in late(1):
        assert not history.say(fact)
    assert history.say(registered("n1", "n1g1", incarnation=2), lost("n1", 2))


def test_a_late_release_of_a_closed_attempt_ends_what_the_node_accounts_for() -> None:
    history = running()
    history.say(
        lost("n1"), requeued("j"), registered("n1", "n1g1", incarnation=2, attempts=(ref("j"),))
    )
    node = history.cluster.nodes["n1"]  # type: ignore[index]
    assert list(node.accounted) == ["j.1"]
    assert history.say(finished("j", "n1")) is False
    assert history.say(released("j", "n1"))
    assert node.accounted == {}


def test_a_stop_of_a_job_that_is_not_on_nodes_changes_nothing() -> None:
    history = History()
    history.say(submitted("j"))
    assert not history.say(stop("j"))


def test_live_jobs_are_those_that_have_not_ended_in_the_order_of_submission() -> None:
    history = begun()
    for name in ("c", "a", "b"):
        history.queue(name)
    history.say(closed("a", "cancelled"))
    assert [each.job_id for each in live_jobs(history.cluster)] == ["c", "b"]
