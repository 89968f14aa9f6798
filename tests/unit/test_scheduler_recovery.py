"""A model recovers from crashes when a replica that began after the last one has served for a
minute: its next replica then begins with no crashes counted.
"""

from libs.common import facts as f
from libs.common.model import JobId, NodeId
from libs.common.scaling_targets import ScalingTargets
from libs.common.state import model_view
from libs.common.state.model_crashes import backoff_until_ns
from services.api_gateway.views.history import summary
from services.scheduler.state.state import State
from tests.given import EPOCH, SECOND_NS, registered, started
from tests.unit.model_world import World, deployed, scaled, unready


def crashed(times: int = 3, **fields: object) -> World:
    """Return a model with one replica, which crashed so often and then became ready."""
    world = World(registered("a", gpus=8), registered("b", gpus=8), deployed(1, **fields))
    for _ in range(times):
        crash(world)
    world.begin(world.living()[-1])
    assert model_view.state_of(world.cluster, world.model) == model_view.READY
    return world


def crash(world: World) -> None:
    replica = world.living()[-1]
    world.hear(started(replica, world.node_of(replica)))
    world.end(replica, at_s=world.at_s + 1)
    world.hear(at_s=max(world.at_s, backoff_until_ns(world.model) / SECOND_NS))


def recoveries(facts: list[f.AnyFact]) -> list[f.ReplicasScaled]:
    return [fact for fact in facts if isinstance(fact, f.ReplicasScaled) and fact.recovered]


def test_a_replica_that_served_for_a_minute_ends_the_count_of_crashes() -> None:
    world = crashed()
    began_s = world.at_s
    assert world.hear(at_s=began_s + 59.9) == [] and world.model.crashes == 3
    (fact,) = world.hear(at_s=began_s + 60)
    assert fact == f.ReplicasScaled(
        model="chat", generation=1, reason="recovered", user="ada", recovered=True
    )
    assert summary(fact) == "model chat recovered from its crashes, generation 1 (recovered)"
    assert (world.model.crashes, backoff_until_ns(world.model)) == (0, 0)
    assert world.model.last_crash == "failed, exit code 1, chat-3"
    assert world.hear(at_s=began_s + 600) == []


def test_a_recovered_model_that_scales_up_starts_and_does_not_crash_loop() -> None:
    world = crashed()
    world.hear(at_s=world.at_s + 60)
    (added,) = [
        fact
        for fact in world.hear(f.ModelScaled(name="chat", replicas=2))
        if isinstance(fact, f.ReplicasScaled)
    ]
    assert added.reason == "wanted"
    assert model_view.state_of(world.cluster, world.model) == model_view.STARTING
    world.hear(started("chat-5", world.node_of("chat-5")))
    assert scaled(world.end("chat-5")) == [(["chat-6"], [])], "the first crash is replaced at once"
    assert world.model.crashes == 1


def test_a_recovered_model_that_slept_wakes_without_crashes() -> None:
    targets = ScalingTargets(replicas_min=0, replicas_max=2, concurrency=1)
    world = crashed(scaling=targets)
    world.hear(at_s=world.at_s + 60)
    for replicas in (0, 1):
        world.hear(f.ModelAutoscaled(name="chat", generation=1, replicas=replicas))
    assert world.living() == ["chat-5"]
    assert model_view.state_of(world.cluster, world.model) == model_view.STARTING


def test_a_recovered_model_whose_node_is_lost_has_no_crashes() -> None:
    world = crashed()
    world.hear(at_s=world.at_s + 60)
    world.hear(f.NodeLost(node_id=NodeId(world.node_of("chat-4")), incarnation=1))
    assert world.living() == ["chat-5"]
    assert model_view.state_of(world.cluster, world.model) == model_view.STARTING


def test_a_replica_that_served_all_the_while_does_not_hide_one_that_crashes() -> None:
    world = World(registered("a", gpus=8), deployed(2))
    world.begin("chat-1")
    for _ in range(9):
        crash(world)
    assert world.cluster.jobs[JobId("chat-1")].members[NodeId("a")].ready
    assert recoveries(world.said) == []
    assert model_view.state_of(world.cluster, world.model) == model_view.CRASH_LOOPING


def test_a_replica_that_is_unready_or_of_an_earlier_generation_proves_nothing() -> None:
    world = crashed()
    began_s = world.at_s
    world.hear(unready("chat-4", world.node_of("chat-4")))
    world.hear(at_s=began_s + 61)
    assert world.model.crashes == 3
    world.hear(deployed(1))
    crash(world)
    assert world.model.crashes == 1
    world.hear(at_s=began_s + 600)
    assert recoveries(world.said) == []


def test_a_recovery_of_an_earlier_generation_is_ignored() -> None:
    world = crashed()
    late = f.ReplicasScaled(model="chat", generation=1, recovered=True)
    world.hear(deployed(1))
    crash(world)
    world.hear(late)
    assert world.model.crashes == 1


def test_a_node_whose_clock_is_behind_does_not_end_the_count() -> None:
    world = crashed()
    world.at_s += 1
    world.cluster.jobs[JobId("chat-4")].members[NodeId(world.node_of("chat-4"))].ready_ns = 1
    world.at_s += 58
    assert recoveries(world.hear(f.ModelScaled(name="chat", replicas=1))) == []


def test_a_new_scheduler_measures_the_minute_from_its_beginning() -> None:
    world = crashed()
    world.state = State(world.cluster)
    world.state.epoch = EPOCH
    assert recoveries(world.hear(at_s=world.at_s + 90)) == []
    assert len(recoveries(world.hear(at_s=world.at_s + 60))) == 1
