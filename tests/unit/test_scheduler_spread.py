"""The replicas of a model keep apart where there is room: over nodes unless the model asks for
racks or for nothing.
"""

from collections import Counter
from typing import Any

import pytest

from libs.common import facts as f
from libs.common.model import JobId
from libs.common.state.model_crashes import BACKOFF_MAX_S
from services.scheduler.models.spread import _crashed
from tests.given import registered
from tests.unit.model_world import World, deployed

pytestmark = pytest.mark.attack


def in_rack(node: str, rack: str, gpus: int = 4) -> f.NodeRegistered:
    return registered(node, gpus=gpus, rack=rack)


def world_of(*nodes: f.NodeRegistered, replicas: int = 3, **fields: Any) -> World:
    return World(*nodes, deployed(replicas, gpus=1, **fields))


def homes(world: World) -> list[str]:
    return [world.node_of(job_id) for job_id in world.living()]


def test_replicas_of_a_model_spread_over_nodes_by_default() -> None:
    assert sorted(homes(world_of(registered("a"), registered("b"), registered("c")))) == [
        "a",
        "b",
        "c",
    ]


def test_fractions_of_a_gpu_spread_too() -> None:
    world = World(registered("a"), registered("b"), deployed(2, gpu_share=25))
    assert sorted(homes(world)) == ["a", "b"]


def test_more_replicas_than_nodes_are_spread_evenly() -> None:
    assert sorted(
        Counter(
            homes(world_of(registered("a"), registered("b"), registered("c"), replicas=7))
        ).values()
    ) == [2, 2, 3]


def test_replicas_share_a_node_where_there_is_no_room_elsewhere() -> None:
    assert Counter(
        homes(world_of(registered("a", gpus=1), registered("b", gpus=8), replicas=4))
    ) == {"a": 1, "b": 3}


def test_a_model_that_does_not_spread_is_packed() -> None:
    assert set(
        homes(world_of(registered("a"), registered("b"), registered("c"), spread="none"))
    ) == {"a"}


def test_replicas_spread_over_racks_before_nodes() -> None:
    world = world_of(
        *(in_rack(node, node[0]) for node in ("a1", "a2", "a3", "b1")), replicas=4, spread="rack"
    )
    assert Counter(homes(world)) == {"a1": 1, "a2": 1, "b1": 2}


def test_nodes_without_a_rack_spread_as_racks_of_their_own() -> None:
    world = world_of(
        in_rack("a1", "a"),
        in_rack("a2", "a"),
        registered("alone"),
        registered("lonely"),
        replicas=3,
        spread="rack",
    )
    assert Counter(homes(world)) == {"a1": 1, "alone": 1, "lonely": 1}


def test_a_redeployment_leaves_the_new_replicas_spread() -> None:
    """New ones count before old ones: else they would follow the gaps that the old ones leave."""
    world = world_of(registered("a"), registered("b"), registered("c"))
    world.begin("chat-1", "chat-2", "chat-3")
    world.hear(f.ModelDeployed(name="chat", spec=world.model.spec, user="ada"))
    for number in (4, 5, 6):
        world.begin(f"chat-{number}")
        world.at_s += 20
        for old in (
            job
            for job in ("chat-1", "chat-2", "chat-3")
            if world.cluster.jobs[JobId(job)].stop_reason
        ):
            if JobId(old) in world.model.jobs:
                world.end(old, 0)
    assert sorted(homes(world)) == ["a", "b", "c"] and world.living() == [
        "chat-4",
        "chat-5",
        "chat-6",
    ]


def test_another_model_s_replicas_do_not_count() -> None:
    world = world_of(registered("a"), registered("b"), replicas=1)
    world.hear(f.ModelDeployed(name="other", spec=world.model.spec, user="ada"))
    assert world.node_of("other-1") == world.node_of("chat-1")


def test_the_same_facts_spread_the_same_way() -> None:
    nodes = [in_rack(f"n{number}", f"r{number % 3}") for number in range(7)]
    assert homes(world_of(*nodes, replicas=9, spread="rack")) == homes(
        world_of(*nodes, replicas=9, spread="rack")
    )


def crash(world: World, *replicas: str) -> None:
    for replica in replicas:
        world.begin(replica)
        world.at_s += 10
        world.end(replica, 1)
        world.at_s += BACKOFF_MAX_S
        world.decide()


@pytest.mark.parametrize("spread", ["node", "none"])
def test_after_two_crashes_in_a_row_a_replica_tries_the_other_nodes_in_turn(spread: str) -> None:
    nodes = (registered("a"), registered("b"), registered("c"))
    world = world_of(*nodes, replicas=1, spread=spread)
    crash(world, "chat-1")
    assert world.node_of("chat-2") == "a", "one crash can be chance"
    crash(world, "chat-2", "chat-3", "chat-4", "chat-5", "chat-6")
    assert [world.node_of(f"chat-{number}") for number in (3, 4, 5, 6, 7)] == list("bcabc")


def test_with_many_nodes_each_is_tried_before_one_is_tried_again() -> None:
    names = "abcdefgh"
    world = world_of(*(registered(name) for name in names), replicas=1)
    crash(world, *(f"chat-{number}" for number in range(1, 9)))
    assert [world.node_of(f"chat-{number}") for number in range(2, 10)] == list(names)


def test_all_nodes_of_a_wave_of_crashes_are_avoided() -> None:
    world = world_of(*(registered(name) for name in "abcde"), replicas=3)
    for wave in (1, 2):
        world.begin(*(replicas := world.living()))
        world.at_s += 5
        for replica in replicas:
            world.end(replica, 1)
        world.at_s += BACKOFF_MAX_S
        world.decide()
        assert world.model.crashes == wave
    assert set(homes(world)) & {"d", "e"} == {"d", "e"}


def test_a_replica_that_crashes_repeatedly_avoids_a_node_before_it_spreads() -> None:
    world = world_of(registered("a"), registered("b"), replicas=2)
    world.begin("chat-2")
    crash(world, "chat-1", "chat-3")
    assert homes(world) == ["b", "b"]


def test_a_replica_that_fits_nowhere_else_stays_on_the_node_where_it_crashes() -> None:
    world = world_of(registered("a"), registered("b", gpus=0), replicas=1)
    crash(world, "chat-1", "chat-2", "chat-3")
    assert world.node_of("chat-4") == "a"


def test_crashes_of_an_earlier_generation_do_not_count() -> None:
    world = world_of(registered("a"), registered("b"), replicas=1)
    crash(world, "chat-1", "chat-2")
    world.hear(f.ModelDeployed(name="chat", spec=world.model.spec, user="ada"))
    world.end("chat-3", 0)
    (first,) = world.living()
    crash(world, first)
    assert [job.job_id for job in _crashed(world.cluster, world.model)] == [first]
