"""The rule `keep`: nodes of entries, their bytes, and what gives way to jobs."""

from typing import Any

from libs.common import facts as f
from libs.common.devices.means import ENFORCED
from libs.common.facts import AnyFact
from libs.common.life import kept_life
from libs.common.model import POOLS, JobId, NodeId, TenantId
from libs.common.state import ledger
from services.scheduler.models import keeping
from tests.given import registered, waiting
from tests.unit.model_world import World, deployed

GIB = 1 << 30


def node(name: str, memory: int = 64, **fields: Any) -> f.NodeRegistered:
    return registered(name, memory_bytes=memory * GIB, cpus_milli=8_000, keeps=True, **fields)


def wish(tier: str = "host", model: str = "chat", **fields: Any) -> f.ModelKeepRequested:
    return f.ModelKeepRequested(model=model, tier=tier, **fields)


def of_kind(facts: list[AnyFact], kind: type) -> list[Any]:
    return [fact for fact in facts if isinstance(fact, kind)]


def measured(world: World, where: str, size: int, model: str = "chat") -> list[AnyFact]:
    kept = world.cluster.kept[f"{model}/host"]
    return world.hear(
        f.KeptObserved(
            node_id=NodeId(where),
            model=model,
            tier="host",
            request=kept.request,
            number=kept.entries[NodeId(where)].number,
            state=kept_life.MEASURED,
            size_bytes=size * GIB,
        )
    )


def ready(world: World, where: str, restore_ms: int, model: str = "chat") -> list[AnyFact]:
    kept = world.cluster.kept[f"{model}/host"]
    entry = kept.entries[NodeId(where)]
    return world.hear(
        f.KeptObserved(
            node_id=NodeId(where),
            model=model,
            tier="host",
            request=kept.request,
            number=entry.number,
            state=kept_life.READY,
            size_bytes=entry.size_bytes,
            restore_ms=restore_ms,
        )
    )


def placed_on(facts: list[AnyFact]) -> list[str]:
    return [fact.node_id for fact in of_kind(facts, f.KeptPlaced)]


def test_a_tier_is_kept_where_the_replicas_are_and_stays_when_they_leave() -> None:
    world = World(node("a"), node("b"), deployed(replicas=1))
    assert placed_on(world.hear(wish())) == [world.node_of("chat-1")]
    where = world.node_of("chat-1")
    world.hear(f.ModelScaled(name="chat", replicas=0))
    assert list(world.cluster.kept["chat/host"].entries) == [where]
    assert of_kind(world.said, f.KeptEvicted) == []


def test_so_many_nodes_are_chosen_those_of_replicas_first() -> None:
    world = World(node("a"), node("b"), node("c", memory=128), deployed(replicas=1))
    first = world.node_of("chat-1")
    assert placed_on(world.hear(wish(nodes=2))) == [first, "c"]


def test_named_nodes_are_taken_and_nodes_with_an_old_agent_are_not() -> None:
    world = World(node("a"), registered("old", memory_bytes=64 * GIB), deployed(replicas=0))
    found = world.hear(wish(node_list=(NodeId("old"), NodeId("a"), NodeId("nowhere"))))
    assert placed_on(found) == ["a"]


def test_measured_bytes_are_granted_if_the_node_has_them() -> None:
    world = World(node("a"), deployed(replicas=1))
    world.hear(wish())
    (grant,) = measured(world, "a", 60)
    assert grant == f.KeptGranted(
        model="chat",
        tier="host",
        node_id=NodeId("a"),
        request=grant.request,
        host_bytes=60 * GIB,
    )
    world = World(node("a"), deployed(replicas=1))
    world.hear(wish())
    assert measured(world, "a", 65) == []
    assert world.cluster.kept["chat/host"].entries[NodeId("a")].state == kept_life.MEASURED


def two_kept() -> World:
    """30 GiB that cost 3 s to restore, and 20 GiB that cost 60 s, on a node with 64 GiB."""
    other = f.ModelDeployed(name="other", spec=deployed(replicas=0).spec, user="ada")
    world = World(node("a", isolation={POOLS: ENFORCED}), deployed(replicas=0), other)
    world.hear(wish(node_list=(NodeId("a"),)), wish(model="other", node_list=(NodeId("a"),)))
    measured(world, "a", 30)
    ready(world, "a", 3_000)
    measured(world, "a", 20, "other")
    ready(world, "a", 60_000, "other")
    assert ledger.free_host_bytes(world.cluster, NodeId("a")) == 14 * GIB
    return world


def test_a_job_that_needs_the_memory_evicts_what_is_cheapest_to_restore() -> None:
    world = two_kept()
    facts = world.hear(*waiting("j", gpus=0, memory_bytes=40 * GIB))
    (evicted,) = of_kind(facts, f.KeptEvicted)
    assert (evicted.model, evicted.reason) == ("chat", keeping.ROOM)
    order = [type(fact) for fact in facts]
    assert order.index(f.KeptEvicted) < order.index(f.JobPlaced)
    assert ledger.free_host_bytes(world.cluster, NodeId("a")) == 4 * GIB


def test_a_job_that_needs_all_memory_evicts_everything_and_one_that_fits_evicts_nothing() -> None:
    world = two_kept()
    facts = world.hear(*waiting("j", gpus=0, memory_bytes=64 * GIB))
    assert {fact.model for fact in of_kind(facts, f.KeptEvicted)} == {"chat", "other"}
    world = two_kept()
    facts = world.hear(*waiting("j", gpus=0, memory_bytes=14 * GIB))
    assert of_kind(facts, f.KeptEvicted) == []


def test_a_job_evicts_for_its_host_pool_as_for_its_memory() -> None:
    for sizes in (
        {"host_pool_bytes": 40 * GIB},
        {"memory_bytes": GIB, "host_pool_bytes": 39 * GIB},
    ):
        world = two_kept()
        facts = world.hear(*waiting("j", gpus=0, **sizes))
        (evicted,) = of_kind(facts, f.KeptEvicted)
        assert (evicted.model, evicted.reason) == ("chat", keeping.ROOM)
        order = [type(fact) for fact in facts]
        assert order.index(f.KeptEvicted) < order.index(f.JobPlaced)


def test_a_decision_that_places_nothing_evicts_nothing() -> None:
    queued = (f.JobQueued(job_id=JobId("j")),)
    assert keeping.with_evictions(two_kept().cluster, queued) == queued


def test_an_evicted_entry_returns_after_a_while() -> None:
    world = two_kept()
    world.hear(*waiting("j", gpus=0, memory_bytes=40 * GIB))
    assert world.cluster.kept["chat/host"].entries[NodeId("a")].state == kept_life.EVICTED
    world.at_s += 31
    assert placed_on(world.decide()) == ["a"]
    assert world.cluster.kept["chat/host"].entries[NodeId("a")].number == 2


def test_a_node_that_registers_with_less_memory_evicts_the_excess() -> None:
    world = two_kept()
    facts = world.hear(node("a", memory=40, incarnation=2))
    assert [fact.model for fact in of_kind(facts, f.KeptEvicted)] == ["chat"]
    assert ledger.free_host_bytes(world.cluster, NodeId("a")) == 20 * GIB


def test_a_node_that_leaves_and_a_name_that_another_tenant_took_are_evicted() -> None:
    world = two_kept()
    facts = world.hear(f.NodeRemovalRequested(node_id=NodeId("a")))
    assert {fact.reason for fact in of_kind(facts, f.KeptEvicted)} == {keeping.NODE_GONE}
    world = two_kept()
    spec = deployed(replicas=0).spec
    facts = world.hear(
        f.ModelUndeployed(name="chat"),
        f.ModelDeployed(name="chat", spec=spec, tenant=TenantId("physics")),
    )
    assert [fact.reason for fact in of_kind(facts, f.KeptEvicted)] == [keeping.TAKEN]


def standby(world: World, size: int) -> list[AnyFact]:
    return world.hear(wish("standby", size_bytes=size * GIB))


def test_a_standby_has_bytes_on_the_devices_of_the_replica_and_goes_with_it() -> None:
    world = World(node("a"), deployed(replicas=1))
    facts = standby(world, 3)
    (grant,) = of_kind(facts, f.KeptGranted)
    assert set(grant.gpu_bytes.values()) == {3 * GIB}
    world.hear(f.ModelScaled(name="chat", replicas=0))
    facts = world.end("chat-1", 0)
    assert [fact.reason for fact in of_kind(facts, f.KeptEvicted)] == [keeping.NO_REPLICA]
    facts = world.hear(f.ModelScaled(name="chat", replicas=1))
    assert placed_on(facts) == ["a"]


def test_a_second_replica_on_the_node_extends_the_grant() -> None:
    world = World(node("a"), deployed(replicas=1))
    standby(world, 3)
    facts = world.hear(f.ModelScaled(name="chat", replicas=2))
    (grant,) = of_kind(facts, f.KeptGranted)
    assert len(grant.gpu_bytes) == 2


def test_what_is_kept_on_a_device_stays_within_the_hold_of_the_replica() -> None:
    world = World(node("a"), deployed(replicas=1, gpu_share=50))
    assert of_kind(standby(world, 41), f.KeptGranted) == []
    world = World(node("a"), deployed(replicas=1, gpu_share=50))
    assert len(of_kind(standby(world, 40), f.KeptGranted)) == 1
    assert of_kind(world.hear(wish("gpu", size_bytes=1)), f.KeptGranted) == []
