"""Replicas on nodes that are to be removed move to other nodes."""

from libs.common import facts as f
from libs.common.change import Stamp
from libs.common.model import JobId, NodeId
from libs.common.state import model_view
from libs.common.subjects import GATEWAY_KIND
from services.scheduler.questions.why_model import explain_model
from tests.given import finished, registered, released, started
from tests.unit.model_world import World, deployed, scaled, unready


def leaves(world: World, wait: bool) -> f.NodeRemovalRequested:
    """The removal of the first replica's node."""
    return f.NodeRemovalRequested(node_id=NodeId(world.node_of("chat-1")), wait=wait)


def stopped(facts: list[f.AnyFact]) -> list[tuple[str, str]]:
    return [(fact.job_id, fact.reason) for fact in facts if isinstance(fact, f.JobStopOrdered)]


def serving(replicas: int = 1, nodes: str = "ab", gpus: int = 4) -> World:
    world = World(*(registered(node, gpus) for node in nodes), deployed(replicas))
    world.begin(*world.living())
    return world


def test_a_replica_of_a_drained_node_ends_when_another_one_is_ready_elsewhere() -> None:
    world = serving()
    said = world.hear(leaves(world, wait=True))
    assert (scaled(said), stopped(said)) == ([(["chat-2"], [])], [])
    assert world.node_of("chat-2") != world.node_of("chat-1")
    assert world.ready() == ["chat-1"]
    said = world.begin("chat-2")
    assert scaled(said) == [([], ["chat-1"])]
    assert stopped(said) == [("chat-1", "cancelled")]
    (retired,) = (fact for fact in said if isinstance(fact, f.ReplicasScaled))
    assert retired.reason == "node_removed"
    world.end("chat-1", None, signal=15, reason="stopped")
    assert (world.living(), world.model.crashes) == (["chat-2"], 0)


def test_replicas_of_a_drained_node_move_one_by_one() -> None:
    world = World(registered("a"), deployed(2))
    world.begin("chat-1", "chat-2")
    world.hear(registered("b"))
    assert scaled(world.hear(leaves(world, wait=True))) == [(["chat-3"], [])]
    assert scaled(world.begin("chat-3")) == [([], ["chat-1"]), (["chat-4"], [])]
    assert world.ready() == ["chat-2", "chat-3"]
    assert scaled(world.begin("chat-4")) == [([], ["chat-2"])]
    assert world.decide() == []
    assert model_view.state_of(world.cluster, world.model) == model_view.READY


def test_a_replica_of_a_drained_node_that_does_not_answer_yet_moves_at_once() -> None:
    world = World(registered("a"), registered("b"), deployed(1))
    node = world.node_of("chat-1")
    said = world.hear(leaves(world, wait=True))
    assert scaled(said) == [([], ["chat-1"]), (["chat-2"], [])]
    assert world.node_of("chat-2") != node


def test_a_busy_replica_of_a_drained_node_serves_until_another_one_is_ready() -> None:
    world = serving()
    world.hear(unready("chat-1", world.node_of("chat-1")))
    assert scaled(world.hear(leaves(world, wait=True))) == [(["chat-2"], [])]
    assert scaled(world.begin("chat-2")) == [([], ["chat-1"])]


def test_without_room_elsewhere_a_replica_serves_on_a_drained_node_until_it_is_to_end_at_once() -> (
    None
):
    world = serving(nodes="a", gpus=1)
    assert scaled(world.hear(leaves(world, wait=True))) == [(["chat-2"], [])]
    assert world.hear(at_s=3_600) == []
    assert world.ready() == ["chat-1"]
    answer = str(explain_model(world.state, "chat")["answer"])
    assert "replica chat-2 waits" in answer and "serves on with 1 ready" in answer
    said = world.hear(leaves(world, wait=False))
    assert stopped(said) == [("chat-1", "node_removed")]
    assert world.ready() == []


def test_a_replica_of_a_node_that_is_removed_at_once_is_replaced_before_it_has_ended() -> None:
    world = serving()
    said = world.hear(leaves(world, wait=False))
    assert stopped(said) == [("chat-1", "node_removed")]
    assert scaled(said) == [([], ["chat-1"]), (["chat-2"], [])]
    assert world.node_of("chat-2") != world.node_of("chat-1")
    assert world.decide() == []
    (closed, *_) = world.end("chat-1", 0, reason="stopped")
    assert isinstance(closed, f.JobClosed) and closed.outcome == "cancelled"
    assert (world.living(), world.model.crashes) == (["chat-2"], 0)


def test_a_replica_that_its_machine_ended_goes_before_the_one_that_loads_elsewhere() -> None:
    world = serving()
    world.hear(leaves(world, wait=True))
    node = world.node_of("chat-2")
    world.hear(started("chat-2", node))
    requeued, *said = world.end("chat-1", None, signal=9, reason="gpu_fault", at_s=2)
    assert isinstance(requeued, f.JobRequeued) and requeued.job_id == "chat-1"
    assert scaled(said) == [([], ["chat-1"])]
    assert (world.living(), world.node_of("chat-2")) == (["chat-2"], node)


def test_without_a_removal_a_replica_that_its_machine_ended_stays() -> None:
    world = serving()
    world.quiet = (NodeId(world.node_of("chat-1")),)
    assert scaled(world.decide()) == [(["chat-2"], [])]
    world.quiet = ()
    assert scaled(world.decide()) == [([], ["chat-2"])]
    world.end("chat-1", None, signal=9, reason="gpu_fault", at_s=2)
    assert world.living() == ["chat-1"]


def test_a_replica_that_waits_for_the_limit_of_its_tenant_says_so() -> None:
    world = serving()
    world.hear(f.TenantSet(tenant=world.model.tenant, max_gpu_share=100))
    assert scaled(world.hear(leaves(world, wait=True))) == [(["chat-2"], [])]
    assert world.hear(at_s=3_600) == [] and world.ready() == ["chat-1"]
    answer = explain_model(world.state, "chat")
    assert "holds 1 of at most 1 GPUs" in str(answer["answer"])
    assert "raise the limit of tenant default" in str(answer["remedy"])
    raised = f.TenantSet(tenant=world.model.tenant, max_gpu_share=200)
    stamp = Stamp(seq=0, at_ns=0, epoch=0, writer=GATEWAY_KIND, writer_id="")
    world.state.imagine(raised, stamp)
    world.decide()
    assert world.node_of("chat-2") != world.node_of("chat-1")


def test_a_replica_that_ends_before_its_model_heard_of_the_removal_is_no_crash() -> None:
    world = serving()
    node = world.node_of("chat-1")
    order = f.JobStopOrdered(
        job_id=JobId("chat-1"), attempt=1, reason="node_removed", signal=15, grace_ms=1
    )
    closed, *_ = world.hear(
        order, finished("chat-1", node, 0, reason="stopped"), released("chat-1", node)
    )
    assert isinstance(closed, f.JobClosed)
    assert (closed.outcome, closed.reason) == ("cancelled", "cancelled")
    assert (world.living(), world.model.crashes) == (["chat-2"], 0)
