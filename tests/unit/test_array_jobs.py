"""Arrays: their elements begin one by one as there is room, in order, and are jobs like any other;
an array ends with the last of them.
"""

import msgspec

from libs.common import arrays
from libs.common import facts as f
from libs.common.change import IGNORED
from libs.common.facts import AnyFact
from libs.common.model import JobId, TenantId
from libs.common.state.ordering import Use
from libs.common.transport import snapshot
from services.quota.decide import decide as quota_decide
from services.quota.state import State as QuotaState
from services.scheduler.decide.decide import decide
from services.scheduler.explain.explain import explain
from services.scheduler.state.state import State
from tests.given import EPOCH, ended, given, member, placed, registered, spec, tell, waiting
from tests.unit.scheduler_decisions import decisions

ARRAY = JobId("j")


def array(text: str, **fields: object) -> list[AnyFact]:
    return waiting("j", array=arrays.parse(text), **fields)


def begun(number: int, **fields: int) -> f.ElementBegun:
    return f.ElementBegun(
        job_id=JobId(f"j_{number}"),
        array=ARRAY,
        number=number,
        tenant=TenantId("default"),
        **fields,
    )


def over(number: int, gpu: int = 0, exit_code: int = 0) -> list[AnyFact]:
    """An element's whole life."""
    outcome = "failed" if exit_code else "completed"
    closed = f.JobClosed(
        job_id=JobId(f"j_{number}"), attempt=1, outcome=outcome, exit_code=exit_code
    )
    return [
        begun(number),
        placed(f"j_{number}", member("a", gpu)),
        *ended(f"j_{number}", "a", exit_code),
        closed,
    ]


def cancel(job: str, grace_s: int = 10) -> f.CancelRequested:
    return f.CancelRequested(job_id=JobId(job), grace_s=grace_s)


def steps(state: State) -> list[str]:
    return [
        f"{f.kind_of(fact).split('.')[1]} {getattr(fact, 'job_id', '')}"
        for fact in decisions(state)
    ]


def outcome(state: State) -> tuple[str, str, int | None]:
    job = state.cluster.jobs[ARRAY]
    return job.state, job.reason, job.exit_code


def test_elements_begin_in_order_as_far_as_there_is_room() -> None:
    state = given(registered("a", gpus=2), array("5-7"))
    assert steps(state) == ["element_begun j_5", "placed j_5", "element_begun j_6", "placed j_6"]
    assert "j_7" not in state.cluster.jobs and state.cluster.jobs[ARRAY].state == "queued"


def test_an_element_goes_before_what_is_left_of_its_array_whatever_was_learnt_meanwhile() -> None:
    """The shortest first, by how long the tenant's jobs took when they came."""
    cluster = given(
        f.QueueSet(queue="default", policy="srsf"), registered("a", gpus=2), array("0-29")
    ).cluster
    cluster.jobs[ARRAY].order.usual_ms = 1_000
    cluster.tenants[TenantId("default")].use = Use(runs=1, runs_ms=50_000)
    state = State(cluster)
    state.begin(EPOCH, 0)
    assert steps(state) == ["element_begun j_0", "placed j_0", "element_begun j_1", "placed j_1"]


def test_nothing_begins_of_an_array_that_is_not_in_line() -> None:
    state = given(registered("a"), array("0-9")[:1])
    assert tell(state.cluster, begun(0)) is IGNORED and state.cluster.jobs[ARRAY].state == "pending"


def test_no_more_elements_are_alive_than_the_array_says() -> None:
    assert steps(given(registered("a"), array("0-9%2"))) == [
        "element_begun j_0",
        "placed j_0",
        "element_begun j_1",
        "placed j_1",
    ]
    assert steps(given(registered("a"), array("0-9%2"), over(0), over(1))) == [
        "element_begun j_2",
        "placed j_2",
        "element_begun j_3",
        "placed j_3",
    ]


def test_the_fold_itself_keeps_the_bound_and_the_order() -> None:
    state = given(registered("a"), array("0-9%1"), begun(0))
    assert [tell(state.cluster, wrong) for wrong in (begun(1), begun(0), begun(5))] == [IGNORED] * 3
    free = given(registered("a"), array("0-9"))
    misnamed = msgspec.structs.replace(begun(0), job_id=JobId("j_1"))
    assert [tell(free.cluster, wrong) for wrong in (begun(1), misnamed)] == [IGNORED] * 2


def test_an_array_completes_when_all_elements_have() -> None:
    state = given(registered("a"), array("0-1"), over(0), over(1))
    assert steps(state) == ["closed j"] and outcome(state) == ("completed", "", 0)


def test_an_array_fails_when_an_element_has_and_tells_its_exit_code() -> None:
    state = given(
        registered("a"), array("0-2"), over(0), over(1, exit_code=7), over(2, exit_code=9)
    )
    assert steps(state) == ["closed j"] and outcome(state) == (
        "failed",
        "2 of 3 elements failed",
        7,
    )


def test_an_array_waits_for_its_last_element() -> None:
    state = given(registered("a"), array("0-1"), over(0), begun(1), placed("j_1", member("a", 0)))
    assert steps(state) == [] and outcome(state)[0] == "begun"


def test_a_cancelled_array_begins_nothing_more_and_ends_with_what_runs() -> None:
    state = given(
        registered("a"), array("0-9%1"), begun(0), placed("j_0", member("a", 0)), cancel("j")
    )
    assert steps(state) == ["stop_ordered j_0"]
    for fact in (*ended("j_0", "a", 143),):
        tell(state.cluster, fact)
    state = State(state.cluster)
    state.begin(1, 0)
    assert steps(state) == ["closed j_0", "closed j"] and outcome(state) == (
        "cancelled",
        "cancelled",
        None,
    )
    assert state.cluster.tenants[TenantId("default")].waiting == 0


def test_a_cancel_reaches_an_element_that_was_about_to_begin() -> None:
    state = given(registered("a"), array("0-9"), cancel("j"), begun(0))
    assert steps(state) == ["closed j_0", "closed j"]


def test_one_element_is_cancelled_and_the_others_go_on() -> None:
    state = given(
        registered("a", gpus=1),
        array("0-1%1"),
        begun(0),
        placed("j_0", member("a", 0)),
        cancel("j_0"),
    )
    assert steps(state) == ["stop_ordered j_0"]


def test_an_element_is_cancelled_before_it_begins() -> None:
    state = given(registered("a", gpus=2), array("0-2"), cancel("j_1"))
    assert steps(state) == [
        "element_begun j_0",
        "placed j_0",
        "element_begun j_1",
        "closed j_1",
        "element_begun j_2",
        "placed j_2",
    ]
    assert (
        state.cluster.jobs[ARRAY].elements is not None
        and state.cluster.jobs[ARRAY].elements.early == {}
    )


def test_an_element_that_is_not_of_the_array_is_not_cancelled() -> None:
    state = given(registered("a"), array("0-2"))
    for job in ("j_3", "j_x", "k_1"):
        tell(state.cluster, cancel(job))
    elements = state.cluster.jobs[ARRAY].elements
    assert elements is not None and elements.early == {}


def test_an_array_with_a_cancelled_element_is_cancelled_in_the_end() -> None:
    gone = [
        begun(0),
        cancel("j_0"),
        f.JobClosed(job_id=JobId("j_0"), attempt=1, outcome="cancelled", reason="cancelled"),
    ]
    state = given(registered("a"), array("0-1"), gone, over(1))
    assert steps(state) == ["closed j"] and outcome(state) == (
        "cancelled",
        "1 of 2 elements cancelled",
        None,
    )


def test_each_element_is_tried_again_by_itself_and_before_those_that_have_not_begun() -> None:
    failed = [begun(0), placed("j_0", member("a", 0)), *ended("j_0", "a", 1)]
    state = given(registered("a", gpus=1), array("0-5", retries=1), failed)
    assert steps(state) == ["requeued j_0", "placed j_0"]


def test_job_that_depends_on_an_array_waits_for_all_its_elements() -> None:
    after = waiting("k", after=(("afterok", ARRAY),))
    assert (
        steps(
            given(
                registered("a"),
                array("0-1"),
                after,
                over(0),
                begun(1),
                placed("j_1", member("a", 0)),
            )
        )
        == []
    )
    assert steps(given(registered("a"), array("0-1"), after, over(0), over(1))) == [
        "closed j",
        "placed k",
    ]
    vain = given(registered("a"), array("0-1"), after, over(0), over(1, exit_code=1))
    assert (
        steps(vain) == ["closed j", "closed k"]
        and vain.cluster.jobs[JobId("k")].reason == "dependency_failed"
    )


def test_an_array_that_is_held_or_waits_begins_nothing() -> None:
    assert steps(given(registered("a"), array("0-1", hold=True))) == []
    assert steps(given(registered("a"), array("0-1"), f.JobUpdated(job_id=ARRAY, held=True))) == []
    assert steps(
        given(registered("a"), waiting("i"), array("0-1", after=(("afterok", JobId("i")),)))
    ) == ["placed i"]


def test_an_element_takes_what_was_changed_of_its_array() -> None:
    state = given(
        registered("a", gpus=1),
        array("0-1"),
        f.JobUpdated(job_id=ARRAY, priority=90, time_limit_s=60),
    )
    assert decisions(state)[0] == begun(0, priority=90, time_limit_s=60)
    element = state.cluster.jobs[JobId("j_0")]
    assert (element.spec.priority, element.spec.time_limit_s) == (90, 60)


def test_an_array_counts_as_its_elements_among_those_that_wait() -> None:
    state = given(registered("a", gpus=1), array("0-9"))
    tenant = state.cluster.tenants[TenantId("default")]
    assert tenant.waiting == 10
    decisions(state)
    assert tenant.waiting == 9


def test_an_array_that_is_too_much_for_its_tenant_is_rejected() -> None:
    def word(text: str, before: int) -> AnyFact:
        limit = f.TenantSet(tenant=TenantId("default"), max_waiting=4)
        others = [fact for number in range(before) for fact in waiting(f"i{number}")]
        asked = f.JobSubmitted(job_id=ARRAY, spec=spec(array=arrays.parse(text)))
        state = QuotaState(given(limit, *others, asked).cluster)
        return quota_decide(state, 0)[0]

    assert word("0-3", 0) == f.JobAdmitted(job_id=ARRAY)
    refusal = (
        "tenant default may have 4 jobs waiting and has 1, and this array has 4 elements: wait "
        "for some to start"
    )
    assert word("0-3", 1) == f.JobRejected(job_id=ARRAY, reason=refusal)


def test_a_tenants_limit_counts_elements() -> None:
    limit = f.TenantSet(tenant=TenantId("default"), max_gpu_share=200)
    assert steps(given(registered("a"), limit, array("0-9"))) == [
        "element_begun j_0",
        "placed j_0",
        "element_begun j_1",
        "placed j_1",
    ]


def test_elements_that_have_not_begun_take_no_memory() -> None:
    def size(text: str) -> int:
        return len(msgspec.msgpack.encode(given(registered("a"), array(text)).cluster))

    assert size("0-99999") - size("0-9") < 16


def test_why_says_that_an_array_waits_for_its_elements() -> None:
    full = given(registered("a"), array("0-9%1"), begun(0), placed("j_0", member("a", 0)))
    proof = explain(full, ARRAY)
    assert proof["answer"] == "1 of its elements have not ended, as many as may be alive at a time"
    assert (proof["blockers"][0]["what"], proof["remedy"]) == ("array limit", "muster why j_0")
    assert (
        "waits for its elements to end"
        in explain(given(registered("a"), array("0"), begun(0)), ARRAY)["answer"]
    )


def test_another_scheduler_goes_on_where_this_one_stopped() -> None:
    state = given(registered("a", gpus=2), array("0-9%3"))
    decisions(state)
    for fact in ended("j_0", "a"):
        tell(state.cluster, fact)
    heir = State(snapshot.copy(state.cluster))
    heir.begin(1, 0)
    assert steps(heir) == ["closed j_0", "element_begun j_2", "placed j_2"]
    assert decide(heir, 0) == ()
