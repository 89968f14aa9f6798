"""Demand for models: reports of gateways become changes of the number of replicas."""

import msgspec

from libs.common import facts as f
from libs.common.messages.outstanding import ModelDemand, Outstanding, decode_outstanding, encode
from libs.common.scaling_targets import ScalingTargets
from libs.common.state import model_view
from services.scheduler.models.autoscaling import SECOND_NS
from services.scheduler.models.demand import FRESH_NS, Demand
from services.scheduler.questions.why_model import explain_model
from tests.given import registered
from tests.unit.model_world import World, deployed, scaled

ZERO_TO_FOUR = ScalingTargets(replicas_min=0, replicas_max=4, concurrency=2, idle_s=60)


def world_of(replicas: int = 1, targets: ScalingTargets | None = ZERO_TO_FOUR) -> World:
    return World(registered("a"), deployed(replicas, scaling=targets))


def follow(world: World, demand: Demand, model: ModelDemand | None, seconds: int) -> list[str]:
    """Report the same demand every second; return the laws of the changes that were recorded."""
    laws = []
    for _ in range(seconds):
        world.at_s += 1
        now_ns = int(world.at_s) * SECOND_NS
        if model is not None:
            demand.hear("g-1", Outstanding(1, demand={"chat": model}), now_ns)
        world.wanted = demand.wanted(world.cluster, now_ns)
        facts = world.decide()
        laws += [fact.law for fact in facts if isinstance(fact, f.ModelAutoscaled)]
    return laws


def test_an_idle_model_loses_its_last_replica_and_a_waiting_request_brings_one_back() -> None:
    world, demand = world_of(), Demand()
    assert follow(world, demand, ModelDemand(), 59) == []
    (law,) = follow(world, demand, ModelDemand(), 2)
    assert "pressure 0.00 wants 0" in law
    assert world.living() == []
    (law,) = follow(world, demand, ModelDemand(waiting=1, waiting_tokens=40), 1)
    assert "0 replicas ready, 1 outstanding, 40 tokens wait" in law
    assert world.living() == ["chat-2"]


def test_requests_that_end_between_two_reports_keep_the_last_replica() -> None:
    world, demand = world_of(), Demand()
    for _ in range(20):
        assert follow(world, demand, ModelDemand(idle_ms=1_500), 10) == []
    assert world.living() == ["chat-1"]
    laws = [
        follow(world, demand, ModelDemand(idle_ms=seconds * 1_000 + 500), 1)
        for seconds in range(2, 61)
    ]
    assert [bool(law) for law in laws] == [False] * 58 + [True]
    assert world.living() == []


def test_the_gateway_with_the_last_request_decides_how_long_a_model_is_idle() -> None:
    world, demand = world_of(), Demand()
    for second in range(200):
        now_ns = (1_000 + second) * SECOND_NS
        for gateway, idle_ms in {"g-1": None, "g-2": 900_000, "g-3": 400}.items():
            report = Outstanding(1, demand={"chat": ModelDemand(idle_ms=idle_ms)})
            demand.hear(gateway, report, now_ns)
        assert demand.wanted(world.cluster, now_ns) == ()


def test_reports_of_older_and_newer_gateways_can_be_read() -> None:
    older = msgspec.msgpack.encode({"seq": 1, "demand": {"chat": {"outstanding": 2}}})
    assert decode_outstanding(older).demand["chat"] == ModelDemand(outstanding=2, idle_ms=None)
    newer = Outstanding(1, demand={"chat": ModelDemand(idle_ms=7)})
    assert decode_outstanding(encode(newer)) == newer


def test_requests_beyond_the_wanted_concurrency_add_replicas_up_to_the_bound() -> None:
    world, demand = world_of(), Demand()
    assert follow(world, demand, ModelDemand(outstanding=20), 30) == []
    (law,) = follow(world, demand, ModelDemand(outstanding=20), 2)
    assert law.endswith("concurrency 10; held by the greatest number allowed")
    assert world.model.wanted == 4


def test_reports_of_several_gateways_add_up() -> None:
    world, demand = world_of(), Demand()
    for second in range(32):
        now_ns = (1_000 + second) * SECOND_NS
        for gateway, one in {
            "g-1": ModelDemand(outstanding=3, first_token_p90_us=9),
            "g-2": ModelDemand(outstanding=2, waiting=1),
        }.items():
            demand.hear(gateway, Outstanding(1, demand={"chat": one}), now_ns)
        found = demand.wanted(world.cluster, now_ns)
    assert [fact.replicas for fact in found] == [3]
    assert "6 outstanding, 1 tokens wait" in found[0].law


def test_a_report_that_could_not_be_read_is_none() -> None:
    demand = Demand()
    demand.hear("g-1", None, 0)
    assert demand.reports == {}


def test_without_a_fresh_report_nothing_changes() -> None:
    world, demand = world_of(), Demand()
    assert follow(world, demand, None, 400) == []
    demand.hear("g-1", Outstanding(1, demand={}), int(world.at_s) * SECOND_NS)
    assert follow(world, demand, None, FRESH_NS // SECOND_NS) == []
    assert demand.reports == {}
    assert world.living() == ["chat-1"]


def test_the_law_is_asked_once_a_second_and_forgets_models_that_scale_no_more() -> None:
    world, demand = world_of(), Demand()
    demand.hear("g-1", Outstanding(1, demand={}), 0)
    assert demand.wanted(world.cluster, 0) == ()
    law = demand.laws["chat"]
    assert demand.wanted(world.cluster, SECOND_NS - 1) == () and demand.laws["chat"] is law
    world.hear(deployed(1, scaling=ScalingTargets(replicas_max=2, concurrency=1)))
    demand.wanted(world.cluster, SECOND_NS)
    assert demand.laws["chat"] is not law
    world.hear(deployed(1))
    demand.wanted(world.cluster, 2 * SECOND_NS)
    assert demand.laws == {}


def test_a_change_that_no_longer_applies_is_not_recorded() -> None:
    world = world_of()
    late = f.ModelAutoscaled(name="chat", generation=1, replicas=3)
    other = f.ModelAutoscaled(name="gone", generation=1, replicas=3)
    world.hear(deployed(1, scaling=ZERO_TO_FOUR))
    world.wanted = (late, other)
    assert not any(isinstance(fact, f.ModelAutoscaled) for fact in world.decide())


def test_a_redeployment_begins_with_its_own_number_and_the_bounds_always_hold() -> None:
    world = world_of()
    world.hear(f.ModelAutoscaled(name="chat", generation=1, replicas=9))
    assert world.model.wanted == 4
    world.hear(deployed(2, scaling=ZERO_TO_FOUR))
    assert world.model.wanted == 2
    world.hear(f.ModelAutoscaled(name="chat", generation=1, replicas=3))
    assert world.model.wanted == 2
    world.hear(f.ModelAutoscaled(name="chat", generation=2, replicas=3))
    assert world.model.wanted == 3
    world.hear(deployed(1))
    assert world.model.wanted == 1


def test_a_number_below_zero_or_for_an_unknown_model_is_ignored() -> None:
    world = world_of()
    world.hear(f.ModelAutoscaled(name="chat", generation=1, replicas=-1))
    world.hear(f.ModelAutoscaled(name="other", generation=1, replicas=1))
    assert world.model.scaled_generation == 0


def test_why_prints_the_law_with_its_numbers() -> None:
    world = world_of()
    assert "(the scheduler keeps 0 to 4, and has not changed their number yet)" in str(
        explain_model(world.state, "chat")["answer"]
    )
    world.hear(f.ModelAutoscaled(name="chat", generation=1, replicas=2, law="pressure 0.8 wants 2"))
    assert "its last change: pressure 0.8 wants 2" in str(
        explain_model(world.state, "chat")["answer"]
    )
    assert model_view.state_of(world.cluster, world.model) == "starting"
    assert scaled(world.said) != []
