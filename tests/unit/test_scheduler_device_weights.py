"""Weights on devices (tier gpu): beside the replicas, for a while after them, and gone for jobs."""

from typing import Any

from libs.common import facts as f
from libs.common.devices.means import ENFORCED
from libs.common.facts import AnyFact
from libs.common.life import kept_life
from libs.common.model import WEIGHTS, GpuId, JobId, NodeId, TenantId
from services.scheduler.models import keeping, on_devices
from services.scheduler.orders.orders import keeps_of
from tests.given import registered, waiting
from tests.unit.model_world import World, deployed
from tests.unit.test_scheduler_keeping import of_kind, wish

GIB = 1 << 30
SIZE = 20 * GIB
LINGER_S = on_devices.LINGER_NS / 1e9


def node(name: str, gpus: int = 4, **fields: Any) -> f.NodeRegistered:
    reports = {"isolation": {WEIGHTS: ENFORCED}} | fields
    return registered(
        name, gpus=gpus, memory_bytes=64 * GIB, cpus_milli=8_000, keeps=True, **reports
    )


def world(*nodes: f.NodeRegistered, size: int = SIZE, replicas: int = 1, **fields: Any) -> World:
    """A model that keeps its weights on the devices of its replicas."""
    made = World(*(nodes or (node("a"),)), deployed(replicas=0, **fields))
    made.hear(wish("gpu", weights="/models/chat", size_bytes=size))
    made.hear(f.ModelScaled(name="chat", replicas=replicas))
    return made


def devices_of(made: World, job: str) -> list[str]:
    members = made.cluster.jobs[JobId(job)].members.values()
    return [hold.uuid for member in members for hold in member.gpus]


def kept_on(made: World, where: str = "a") -> dict[GpuId, int]:
    entry = made.cluster.kept["chat/gpu"].entries.get(NodeId(where))
    return entry.gpu_bytes if entry is not None else {}


def ready(made: World, where: str = "a") -> list[AnyFact]:
    kept = made.cluster.kept["chat/gpu"]
    entry = kept.entries[NodeId(where)]
    return made.hear(
        f.KeptObserved(
            node_id=NodeId(where),
            model="chat",
            tier="gpu",
            request=kept.request,
            number=entry.number,
            state=kept_life.READY,
            size_bytes=SIZE,
        )
    )


def crash(made: World, job: str, **fields: Any) -> list[AnyFact]:
    """Let the replica run and crash."""
    made.begin(job)
    return made.end(job, **fields)


def scale(made: World, replicas: int, *ending: str) -> list[AnyFact]:
    """Scale the model; these replicas end."""
    made.hear(f.ModelScaled(name="chat", replicas=replicas))
    return [fact for job in ending for fact in made.end(job, 0)]


def test_a_replica_is_told_to_wait_for_weights_and_its_devices_have_their_bytes() -> None:
    made = world()
    serve = made.cluster.jobs[JobId("chat-1")].spec.serve
    assert serve is not None and serve.device_weights and not serve.standby
    (uuid,) = devices_of(made, "chat-1")
    assert kept_on(made) == {uuid: SIZE}
    (order,) = keeps_of(made.cluster, NodeId("a"))
    assert (order.gpu_bytes, order.granted) == ({uuid: SIZE}, SIZE)


def test_after_two_crashes_a_replica_leaves_the_node_with_its_weights() -> None:
    made = world(node("a"), node("b"))
    ready(made)
    devices = devices_of(made, "chat-1")
    for replica in ("chat-1", "chat-2"):
        assert devices_of(made, replica) == devices
        made.begin(replica)
        made.at_s += 5
        made.end(replica, 1)
    made.at_s += 5
    made.decide()
    assert made.node_of("chat-3") == "b"


def test_a_replica_that_crashes_where_no_other_node_fits_keeps_its_weights() -> None:
    made = world(node("a"), replicas=0)
    made.hear(*waiting("small", gpus=1))
    made.hear(f.ModelScaled(name="chat", replicas=1))
    ready(made)
    devices = devices_of(made, "chat-1")
    made.end("small", 0)
    for number in range(1, 4):
        made.begin(f"chat-{number}")
        made.at_s += 5
        made.end(f"chat-{number}", 1)
        made.at_s += 5
        made.decide()
    assert devices_of(made, "chat-4") == devices


def test_a_node_that_cannot_keep_weights_on_its_devices_has_no_entry() -> None:
    for reports in ({}, {WEIGHTS: "lost: the memory of devices is cleared between jobs"}):
        made = world(node("a", isolation=reports))
        assert made.cluster.kept["chat/gpu"].entries == {}


def test_the_next_replica_starts_on_the_device_that_has_the_weights() -> None:
    made = world(node("a"), node("b"))
    where, before = made.node_of("chat-1"), devices_of(made, "chat-1")
    ready(made, where)
    facts = crash(made, "chat-1")
    assert of_kind(facts, f.KeptEvicted) == of_kind(facts, f.KeptGranted) == []
    assert devices_of(made, "chat-2") == before
    assert made.cluster.kept["chat/gpu"].entries[NodeId(where)].state == kept_life.READY


def test_weights_count_more_than_an_even_spread() -> None:
    made = world(node("a", gpus=2), node("b", gpus=2), replicas=3)
    jobs = ["chat-1", "chat-2", "chat-3"]
    crowded = next(
        job for job in jobs if [made.node_of(each) for each in jobs].count(made.node_of(job)) == 2
    )
    before = devices_of(made, crowded)
    crash(made, crowded)
    assert devices_of(made, "chat-4") == before


def test_a_replica_that_needs_more_devices_than_have_weights_goes_elsewhere() -> None:
    made = world(gpus=1)
    scale(made, 0, "chat-1")
    made.hear(deployed(replicas=0, gpus=2))
    made.hear(f.ModelScaled(name="chat", replicas=1))
    assert len(devices_of(made, "chat-2")) == 2
    made = world(node("a", gpus=1), node("b", gpus=1))
    where = made.node_of("chat-1")
    scale(made, 0, "chat-1")
    made.hear(f.NodeDrained(node_id=NodeId(where), test="t", evidence="slow"))
    made.hear(f.ModelScaled(name="chat", replicas=1))
    assert made.node_of("chat-2") != where


def test_weights_linger_without_a_replica_for_a_while() -> None:
    made = world()
    scale(made, 0, "chat-1")
    assert len(kept_on(made)) == 1
    made.at_s += LINGER_S - 1
    assert of_kind(made.decide(), f.KeptEvicted) == []
    made.at_s += 2
    (evicted,) = of_kind(made.decide(), f.KeptEvicted)
    assert evicted.reason == keeping.NO_REPLICA
    assert made.state.restless.kept_alone == {}
    made.hear(f.ModelScaled(name="chat", replicas=1))
    assert len(kept_on(made)) == 1


def test_a_device_whose_replica_left_long_ago_is_given_up_beside_another_replica() -> None:
    made = world(replicas=2)
    kept = kept_on(made)
    scale(made, 1, "chat-2")
    assert kept_on(made) == kept
    made.at_s += LINGER_S + 1
    (grant,) = of_kind(made.decide(), f.KeptGranted)
    assert list(grant.gpu_bytes) == devices_of(made, "chat-1")


def test_a_job_on_the_device_evicts_in_the_same_decision() -> None:
    made = world()
    scale(made, 0, "chat-1")
    facts = made.hear(*waiting("j", gpus=4))
    (evicted,) = of_kind(facts, f.KeptEvicted)
    assert evicted.reason == on_devices.TAKEN_BY_JOB
    kinds = [type(fact) for fact in facts]
    assert kinds.index(f.KeptEvicted) < kinds.index(f.JobPlaced)
    assert kept_on(made) == {}


def test_a_job_on_one_of_two_devices_takes_only_that() -> None:
    made = world(gpus=2)
    first, second = devices_of(made, "chat-1")
    scale(made, 0, "chat-1")
    facts = made.hear(*waiting("j", gpus=1, gpu_uuids=(GpuId(first),)))
    assert of_kind(facts, f.KeptEvicted) == []
    (grant,) = of_kind(facts, f.KeptGranted)
    assert grant.gpu_bytes == {second: SIZE}
    made.hear(f.ModelScaled(name="chat", replicas=1))  # it needs two: the one left does not count
    assert first not in devices_of(made, "chat-2")


def test_a_job_beside_a_running_replica_or_on_another_device_evicts_nothing() -> None:
    made = world(gpu_share=50)
    (uuid,) = devices_of(made, "chat-1")
    facts = made.hear(*waiting("j", gpu_share=50, gpu_uuids=(GpuId(uuid),)))
    assert len(of_kind(facts, f.JobPlaced)) == 1 and of_kind(facts, f.KeptEvicted) == []
    facts = made.hear(*waiting("k", gpus=1))
    assert len(of_kind(facts, f.JobPlaced)) == 1 and of_kind(facts, f.KeptEvicted) == []


def test_a_standby_s_bytes_do_not_give_way_to_its_own_replica() -> None:
    made = world()
    made.hear(wish("standby", size_bytes=GIB))
    crash(made, "chat-1")
    assert {evicted.tier for evicted in of_kind(made.said, f.KeptEvicted)} <= {"standby"}
    assert len(kept_on(made)) == 1


def test_a_smaller_replica_into_which_the_weights_do_not_fit_evicts_them() -> None:
    made = world(size=60 * GIB)
    scale(made, 0, "chat-1")
    made.hear(deployed(replicas=0, gpu_share=50))
    facts = made.hear(f.ModelScaled(name="chat", replicas=1))
    assert len(of_kind(facts, f.JobPlaced)) == 1
    assert [each.reason for each in of_kind(facts, f.KeptEvicted)] == [on_devices.TAKEN_BY_JOB]
    assert kept_on(made) == {}


def test_weights_that_do_not_fit_beside_a_standby_are_not_granted() -> None:
    made = World(node("a"), deployed(replicas=1, gpu_share=50))
    made.hear(wish("standby", size_bytes=30 * GIB))
    facts = made.hear(wish("gpu", weights="/m", size_bytes=20 * GIB))
    assert of_kind(facts, f.KeptGranted) == []


def test_a_replica_that_names_its_devices_gets_those() -> None:
    made = world(gpu_uuids=(GpuId("a-gpu1"), GpuId("a-gpu2")))
    before = devices_of(made, "chat-1")
    crash(made, "chat-1")
    assert devices_of(made, "chat-2") == before


def test_another_tenant_s_model_of_the_same_name_evicts_at_once() -> None:
    made = world()
    scale(made, 0, "chat-1")
    facts = made.hear(
        f.ModelUndeployed(name="chat"),
        f.ModelDeployed(name="chat", spec=deployed(replicas=0).spec, tenant=TenantId("physics")),
    )
    assert [each.reason for each in of_kind(facts, f.KeptEvicted)] == [keeping.TAKEN]
