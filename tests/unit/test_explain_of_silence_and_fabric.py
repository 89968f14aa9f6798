"""`why` of jobs that wait for a silent node, or for a measured fabric."""

from libs.common import facts as f
from libs.common.model import GpuId, JobId, NodeId
from services.scheduler.decide.decide import decide
from services.scheduler.explain.explain import explain
from tests.given import given, member, placed, registered, started, waiting

J = JobId("j")
SECOND_NS = 100_000_000_000


def test_a_job_that_may_go_on_on_a_silent_node_names_it_and_the_way_out() -> None:
    history = [
        registered("a"),
        *waiting("j", on_control_loss="continue"),
        placed("j", member("a", 0)),
        started("j", "a"),
    ]
    assert explain(given(history), J)["remedy"] is None
    answer = explain(given(history, f.NodeLost(node_id=NodeId("a"), incarnation=1)), J)
    assert answer["answer"].endswith(
        "its node a is silent and it may still run there: it starts nowhere else until its node "
        "answers or is declared dead"
    )
    assert (
        answer["remedy"]
        == "wait for a, or, when nothing of it is running any more: muster node dead a"
    )


def test_a_job_with_two_gpus_waits_for_the_fabric_and_a_job_with_one_does_not() -> None:
    fault = f.GpuFaulted(
        node_id=NodeId("a"),
        uuid=GpuId("a-gpu0"),
        health="degraded",
        reason="fabric",
        detail="it has not {started}",
        alone=True,
    )
    state = given(registered("a"), fault, waiting("j", gpus=2))
    assert "NVLink fabric not up, so only jobs with one GPU: it has not {started}" in str(
        explain(state, J)["blockers"]
    )
    alone = given(registered("a"), fault, waiting("k", gpus=1))
    assert "k" in [
        getattr(fact, "job_id", "")
        for fact in decide(alone, SECOND_NS)
        if isinstance(fact, f.JobPlaced)
    ]
    mended = given(
        registered("a"),
        fault,
        f.GpuRecovered(node_id=NodeId("a"), uuid=GpuId("a-gpu0")),
        waiting("j", gpus=2),
    )
    assert "j" in [
        getattr(fact, "job_id", "")
        for fact in decide(mended, SECOND_NS)
        if isinstance(fact, f.JobPlaced)
    ]
