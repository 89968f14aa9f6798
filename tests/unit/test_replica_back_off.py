"""A replica that its machine ends soon waits before it starts again, as other jobs do."""

import pytest

from libs.common import facts as f
from libs.common.model import JobId
from libs.common.state import model_view
from services.scheduler.questions.why_model import explain_model
from tests.given import finished, registered, released, started
from tests.unit.model_world import World, deployed, scaled

SUDDEN = ("supervisor_lost", "mps_lost", "gpu_fault")


def ended_by_its_machine(world: World, attempt: int, reason: str, at_s: float) -> list[f.AnyFact]:
    node = world.node_of("chat-1")
    return world.hear(
        started("chat-1", node, attempt),
        finished("chat-1", node, None, attempt, reason=reason),
        released("chat-1", node, attempt),
        at_s=at_s,
    )


@pytest.mark.attack
@pytest.mark.parametrize("reason", SUDDEN)
def test_a_replica_that_its_machine_ends_again_and_again_waits_longer_each_time(
    reason: str,
) -> None:
    world = World(registered("a"), deployed(1))
    at_s, waits = 1.0, []
    for attempt in range(1, 13):
        ended_by_its_machine(world, attempt, reason, at_s)
        waited = 0
        while world.cluster.jobs[JobId("chat-1")].state != "placed":
            assert world.living() == ["chat-1"]
            waited += 1
            world.hear(at_s=at_s + waited + 0.001)
        waits.append(waited)
        at_s = world.at_s
    assert waits == [0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 64, 64]
    assert (world.model.crashes, world.model.last_crash) == (0, "")


def test_why_explains_a_replica_that_waits_after_faults_of_machines() -> None:
    world = World(registered("a"), deployed(1))
    for attempt in range(1, 5):
        ended_by_its_machine(world, attempt, "supervisor_lost", 1.0)
    answer = explain_model(world.state, "chat")
    assert answer["state"] == model_view.WAITING
    assert "4 attempts ended by their machines' faults" in str(answer["answer"])


@pytest.mark.parametrize("reason", SUDDEN)
def test_a_replica_that_served_for_a_minute_before_its_machine_ended_it_is_replaced_at_once(
    reason: str,
) -> None:
    world = World(registered("a"), deployed(1))
    world.begin("chat-1")
    said = world.end("chat-1", None, at_s=world.at_s + 61, reason=reason)
    assert scaled(said) == [(["chat-2"], [])]
    assert world.model.crashes == 0


def test_a_replica_of_an_earlier_generation_is_not_tried_again_after_a_fault_of_its_machine() -> (
    None
):
    world = World(registered("a"), deployed(1))
    world.begin("chat-1")
    world.hear(deployed(1))
    assert world.living() == ["chat-1", "chat-2"]
    assert scaled(world.end("chat-1", None, reason="mps_lost")) == [([], ["chat-1"])]
    assert world.cluster.jobs[JobId("chat-1")].state == "cancelled"
    assert world.living() == ["chat-2"]
