"""The rule `scale`: replicas begin, are replaced and end: each rule acts, refuses, does nothing."""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common.container_spec import ContainerSpec
from libs.common.model import JobId, JobSpec, NodeId, Serve
from libs.common.model_spec import ModelSpec
from libs.common.state import model_view
from libs.common.state.cluster import Endpoint, ready_replicas
from services.scheduler.decide.decide import decide
from services.scheduler.models.models import backoff_until_ns
from services.scheduler.questions.why_model import explain_model
from services.scheduler.state.state import State
from tests.given import (
    EPOCH,
    SECOND_NS,
    finished,
    registered,
    released,
    started,
    tell,
    waiting,
)
from tests.unit.model_world import World, deployed, ready, scaled, unready


def test_a_deployed_model_gets_its_replicas_and_they_are_placed_as_jobs_of_its_tenant() -> None:
    world = World(registered("a"), deployed(2, gpus=2))
    assert scaled(world.said) == [(["chat-1"], []), (["chat-2"], [])]
    job = world.cluster.jobs[JobId("chat-1")]
    assert (job.state, job.user, job.tenant, job.spec.gpus, job.spec.requeue) == (
        "placed",
        "ada",
        "default",
        2,
        False,
    )
    assert job.spec.serve is not None and (job.spec.serve.model, job.spec.serve.generation) == (
        "chat",
        1,
    )
    assert world.decide() == []


def test_a_replica_is_an_endpoint_only_while_it_is_ready() -> None:
    world = World(registered("a"), deployed(1))
    assert world.ready() == []
    world.hear(started("chat-1", "a"))
    assert world.ready() == []
    world.hear(ready("chat-1", "a"))
    assert ready_replicas(world.cluster, "chat") == [Endpoint(JobId("chat-1"), "127.0.0.1", 29_500)]
    world.hear(
        f.ReplicaUnready(
            job_id=JobId("chat-1"), attempt=1, node_id=NodeId("a"), reason="status 500"
        )
    )
    assert world.ready() == []
    assert world.living() == ["chat-1"]


def test_a_replica_on_two_nodes_is_placed_as_a_gang_and_answers_at_rank_0() -> None:
    world = World(registered("a"), registered("b"), deployed(1, nodes=2, gpus=1))
    members = world.cluster.jobs[JobId("chat-1")].members
    assert [member.rank for member in members.values()] == [0, 1]
    first, second = members
    world.hear(started("chat-1", first), started("chat-1", second), ready("chat-1", first))
    (endpoint,) = ready_replicas(world.cluster, "chat")
    assert endpoint.address == world.cluster.nodes[first].address


def test_a_replica_on_two_nodes_is_replaced_when_one_of_them_fails() -> None:
    world = World(registered("a"), registered("b"), deployed(1, nodes=2, gpus=1))
    first, second = world.cluster.jobs[JobId("chat-1")].members
    world.hear(started("chat-1", first), started("chat-1", second), ready("chat-1", first))
    world.hear(finished("chat-1", second, 1), released("chat-1", second))
    assert world.cluster.jobs[JobId("chat-1")].stop_reason
    said = world.hear(finished("chat-1", first, None, signal=15), released("chat-1", first))
    assert scaled(said) == [(["chat-2"], [])]


def test_a_replica_on_two_nodes_has_nothing_that_a_node_keeps() -> None:
    kept = f.ModelKeepRequested(model="chat", tier="gpu", size_bytes=1 << 30, user="ada")
    world = World(registered("a"), registered("b"), deployed(0, nodes=2, gpus=1), kept)
    world.hear(f.ModelScaled(name="chat", replicas=1, user="ada"))
    serve = world.cluster.jobs[JobId("chat-1")].spec.serve
    assert serve is not None and not serve.device_weights and not serve.standby


def test_readiness_of_a_job_that_is_no_replica_is_ignored() -> None:
    world = World(registered("a"), waiting("j"), deployed(0))
    world.hear(started("j", "a"), ready("j", "a"))
    assert world.cluster.ignored == 1


def test_a_dead_replica_is_replaced_at_once() -> None:
    world = World(registered("a"), deployed(2))
    world.begin("chat-1", "chat-2")
    assert scaled(world.end("chat-1", None, signal=9, reason="signalled")) == [(["chat-3"], [])]
    assert world.model.crashes == 1


def test_a_replica_that_ends_with_0_is_replaced_like_any_other() -> None:
    world = World(registered("a"), deployed(1))
    world.begin("chat-1")
    assert scaled(world.end("chat-1", 0)) == [(["chat-2"], [])]


def test_repeated_crashes_are_replaced_after_1_2_4_up_to_300_seconds() -> None:
    world = World(registered("a"), deployed(1))
    waits = []
    for number in range(1, 13):
        world.hear(started(f"chat-{number}", "a"))
        world.end(f"chat-{number}", 3)
        due_ns = backoff_until_ns(world.model)
        waits.append(max(0.0, due_ns / SECOND_NS - world.at_s))
        if waits[-1]:
            assert world.hear(at_s=due_ns / SECOND_NS - 0.001) == []
            assert scaled(world.hear(at_s=due_ns / SECOND_NS)) == [([f"chat-{number + 1}"], [])]
    assert waits == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert model_view.state_of(world.cluster, world.model) == model_view.CRASH_LOOPING
    assert world.model.last_crash == "failed, exit code 3, chat-12"


def test_replicas_that_die_together_are_one_crash() -> None:
    world = World(registered("a"), registered("b"), deployed(4))
    world.begin("chat-1", "chat-2", "chat-3", "chat-4")
    for number in (1, 2, 3, 4):
        world.end(f"chat-{number}")
    assert world.model.crashes == 1
    assert world.living() == ["chat-5", "chat-6", "chat-7", "chat-8"]
    world.end("chat-6")
    assert world.model.crashes == 2


def test_a_replica_that_served_for_a_minute_resets_the_crash_count() -> None:
    world = World(registered("a"), deployed(1))
    for number in (1, 2, 3):
        world.hear(started(f"chat-{number}", "a"))
        world.end(f"chat-{number}", at_s=world.at_s + 10)
        world.hear(at_s=world.at_s + 10)
    assert world.model.crashes == 3
    world.begin("chat-4")
    world.end("chat-4", at_s=world.at_s + 61)
    assert world.model.crashes == 1
    assert world.living() == ["chat-5"]


def test_a_replica_that_did_not_answer_in_time_counts_as_a_crash() -> None:
    world = World(registered("a"), deployed(1))
    world.hear(started("chat-1", "a"))
    said = world.end("chat-1", 0, reason="startup_timeout")
    assert said[0] == f.JobClosed(
        job_id=JobId("chat-1"),
        attempt=1,
        outcome="failed",
        reason="startup_timeout",
        exit_code=None,
    )
    assert "startup_timeout" in world.model.last_crash


def test_a_refused_replica_gets_another_port_and_counts_as_no_crash() -> None:
    world = World(registered("a"), deployed(1))
    said = world.hear(
        f.JobRefused(
            job_id=JobId("chat-1"), attempt=1, node_id=NodeId("a"), reason="port 29500 is in use"
        )
    )
    assert [type(fact) for fact in [*said, *world.hear(at_s=7)]] == [f.JobRequeued, f.JobPlaced]
    assert (world.living(), world.cluster.jobs[JobId("chat-1")].port, world.model.crashes) == (
        ["chat-1"],
        29_501,
        0,
    )


def test_a_replica_lost_with_its_node_is_no_crash() -> None:
    world = World(registered("a"), registered("b"), deployed(1))
    world.begin("chat-1")
    lost = f.NodeLost(node_id=NodeId(world.node_of("chat-1")), incarnation=1)
    assert scaled(world.hear(lost)) == [(["chat-2"], [])]
    assert world.model.crashes == 0
    assert world.node_of("chat-2") != lost.node_id


def test_replacements_on_quiet_nodes_at_most_double_the_replicas() -> None:
    world = World(registered("a", gpus=8), deployed(2))
    world.begin("chat-1", "chat-2")
    world.quiet = (NodeId("a"),)
    world.decide()
    assert world.living() == ["chat-1", "chat-2", "chat-3", "chat-4", "chat-5"]


def test_a_replica_on_a_silent_node_is_replaced_early_and_the_excess_ends_later() -> None:
    world = World(registered("a", gpus=1), registered("b", gpus=2), deployed(2))
    world.begin("chat-1", "chat-2")
    gone = next(job for job in ("chat-1", "chat-2") if world.node_of(job) == "a")
    world.quiet = (NodeId("a"),)
    assert scaled(world.decide()) == [(["chat-3"], [])]
    assert world.decide() == []
    world.quiet = ()
    assert scaled(world.decide()) == [([], ["chat-3"])]
    assert gone in world.living()


def test_newest_surplus_ready_replica_ends() -> None:
    world = World(registered("a"), deployed(3))
    world.begin("chat-1", "chat-2", "chat-3")
    assert scaled(world.hear(f.ModelScaled(name="chat", replicas=2))) == [([], ["chat-3"])]
    assert scaled(world.hear(f.ModelScaled(name="chat", replicas=3))) == [(["chat-4"], [])]
    assert scaled(world.hear(f.ModelScaled(name="chat", replicas=0))) == [
        ([], ["chat-4", "chat-2", "chat-1"])
    ]
    assert model_view.state_of(world.cluster, world.model) == model_view.READY


def test_an_undeployed_model_ends_its_replicas_and_its_ordinals_are_not_used_again() -> None:
    world = World(registered("a"), deployed(2))
    world.begin("chat-1", "chat-2")
    said = world.hear(f.ModelUndeployed(name="chat"))
    assert scaled(said) == [([], ["chat-1", "chat-2"])]
    assert [fact.job_id for fact in said if isinstance(fact, f.JobStopOrdered)] == [
        "chat-1",
        "chat-2",
    ]
    assert world.ready() == []
    assert model_view.state_of(world.cluster, world.model) == model_view.STOPPING
    world.end("chat-1", None, signal=15, reason="stopped")
    assert world.end("chat-2", 0, reason="stopped")[0] == f.JobClosed(
        job_id=JobId("chat-2"), attempt=1, outcome="cancelled", reason="cancelled"
    )
    assert model_view.state_of(world.cluster, world.model) == model_view.UNDEPLOYED
    assert (world.model.crashes, world.model.last_crash) == (0, "")
    assert scaled(world.hear(deployed(1))) == [(["chat-3"], [])]
    assert world.model.generation == 2


def test_a_redeployment_replaces_replicas_one_by_one_and_never_serves_with_fewer() -> None:
    world = World(registered("a"), deployed(2))
    world.begin("chat-1", "chat-2")
    assert scaled(world.hear(deployed(2))) == [(["chat-3"], [])]
    assert model_view.state_of(world.cluster, world.model) == model_view.REDEPLOYING
    assert world.ready() == ["chat-1", "chat-2"]
    assert scaled(world.begin("chat-3")) == [([], ["chat-1"]), (["chat-4"], [])]
    assert world.ready() == ["chat-2", "chat-3"]
    assert scaled(world.begin("chat-4")) == [([], ["chat-2"])]
    assert world.ready() == ["chat-3", "chat-4"]
    assert model_view.state_of(world.cluster, world.model) == model_view.READY


def test_a_redeployment_without_room_for_one_more_waits_while_the_old_serve() -> None:
    world = World(registered("a", gpus=2), deployed(2))
    world.begin("chat-1", "chat-2")
    assert scaled(world.hear(deployed(2))) == [(["chat-3"], [])]
    assert world.cluster.jobs[JobId("chat-3")].state == "queued"
    assert world.decide() == []
    assert world.ready() == ["chat-1", "chat-2"]


def test_a_redeployment_ends_replicas_that_cannot_answer_at_once() -> None:
    world = World(registered("a"), deployed(2))
    world.begin("chat-1")
    assert scaled(world.hear(deployed(2))) == [([], ["chat-2"]), (["chat-3"], []), (["chat-4"], [])]
    assert world.ready() == ["chat-1"]


def test_a_redeployment_that_crashes_leaves_the_old_ones_serving() -> None:
    world = World(registered("a"), deployed(1))
    world.begin("chat-1")
    world.hear(deployed(1))
    for number in (2, 3, 4):
        world.hear(started(f"chat-{number}", "a"), at_s=world.at_s + 10)
        world.end(f"chat-{number}")
        world.hear(at_s=world.at_s + 10)
        assert world.ready() == ["chat-1"]
    assert model_view.state_of(world.cluster, world.model) == model_view.CRASH_LOOPING
    assert scaled(world.hear(deployed(1)))[0][0] == [] and world.model.crashes == 0


def test_a_cancelled_replica_is_replaced_and_is_no_crash() -> None:
    world = World(registered("a"), deployed(1))
    world.begin("chat-1")
    assert scaled(world.hear(f.CancelRequested(job_id=JobId("chat-1")))) == [(["chat-2"], [])]
    world.end("chat-1", None, signal=15, reason="stopped")
    assert world.model.crashes == 0


def test_a_deployed_model_stays_with_its_tenant() -> None:
    world = World(registered("a"), deployed(1))
    other = f.ModelDeployed(
        name="chat", spec=ModelSpec(command=("x",)), tenant=world.model.tenant.__class__("other")
    )
    assert world.hear(other) == []
    assert (world.model.tenant, world.model.generation) == ("default", 1)


def test_a_new_scheduler_decides_the_same_from_the_same_log() -> None:
    world = World(registered("a"), deployed(2))
    world.begin("chat-1", "chat-2")
    tell(world.cluster, deployed(3))
    fresh = State(world.cluster)
    fresh.epoch = EPOCH
    assert scaled(decide(fresh, SECOND_NS)) == [(["chat-3"], [])]


def test_a_replica_takes_over_all_requests_of_its_model() -> None:
    """Each field another value than a job's own, so that none that is left out goes unnoticed."""
    values = {
        name: _another(getattr(JobSpec(command=("x",)), name)) for name in model_view.SHARED_FIELDS
    }
    spec = model_view.replica_spec(ModelSpec(**values), "chat", 3)
    assert {name: getattr(spec, name) for name in values} == values
    assert spec.serve == Serve("chat", 3) and not spec.requeue


def _another(default: Any) -> Any:
    if default is None:
        return ContainerSpec(user="1000")
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return default + 1
    return (
        {"a": "b"}
        if isinstance(default, dict)
        else ("y",)
        if isinstance(default, tuple)
        else default + "z"
    )


def test_replicas_obey_the_placement_fields_of_their_model() -> None:
    world = World(
        registered("a"),
        registered("b", labels={"disk": "ssd"}),
        deployed(3, node_labels={"disk": "ssd"}),
    )
    assert [
        member.node_id for job in world.cluster.jobs.values() for member in job.members.values()
    ] == ["b"] * 3


@pytest.mark.attack
def test_a_redeployment_does_not_end_the_last_replica_that_can_answer() -> None:
    world = World(registered("a"), deployed(1))
    world.begin("chat-1")
    world.hear(unready("chat-1"))
    assert scaled(world.hear(deployed(1))) == [(["chat-2"], [])]
    assert world.living() == ["chat-1", "chat-2"]
    assert scaled(world.begin("chat-2")) == [([], ["chat-1"])]


def test_unready_old_replicas_end_first_and_only_as_many_as_can_be_spared() -> None:
    world = World(registered("a"), deployed(2))
    world.begin("chat-1", "chat-2")
    world.hear(unready("chat-2"))
    world.hear(deployed(2))
    assert scaled(world.begin("chat-3"))[0] == ([], ["chat-2"])
    assert world.ready() == ["chat-1", "chat-3"]


def test_surplus_replicas_that_were_never_ready_end_first() -> None:
    world = World(registered("a"), deployed(3))
    world.begin("chat-1", "chat-2")
    world.hear(unready("chat-1"))
    assert scaled(world.hear(f.ModelScaled(name="chat", replicas=2))) == [([], ["chat-3"])]
    assert scaled(world.hear(f.ModelScaled(name="chat", replicas=1))) == [([], ["chat-1"])]


def test_why_explains_an_unready_model_and_names_a_remedy() -> None:
    world = World(registered("a"), deployed(1))
    world.begin("chat-1")
    world.hear(unready("chat-1"))
    answer = str(explain_model(world.state, "chat")["answer"])
    assert (
        "1 of 1 replicas run but do not answer their health probe" in answer
        and "--health-timeout" in answer
    )


def test_a_replica_is_called_by_its_job_s_state_until_it_starts_and_by_its_probe_after() -> None:
    world = World(deployed(1))
    job = world.cluster.jobs[JobId("chat-1")]
    assert model_view.replica_state(job) == "queued"
    world.hear(registered("a"))
    assert model_view.replica_state(job) == "starting"
    world.begin("chat-1")
    assert model_view.replica_state(job) == "ready"
    world.hear(unready("chat-1"))
    assert model_view.replica_state(job) == "unready"
