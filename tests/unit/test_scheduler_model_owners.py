"""The rule `scale` when the name of a model changes its owner."""

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.model import JobId, TenantId
from libs.common.state import model_view
from tests.given import registered, tell
from tests.unit.model_world import World, deployed, scaled, unready


def test_a_former_owners_replica_never_serves_the_new_owner_of_the_name() -> None:
    world = World(registered("a"), deployed(1))
    world.begin("chat-1")
    # Both facts are folded before the scheduler decides, as a gateway may see them.
    for fact in (f.ModelUndeployed(name="chat"), replace(deployed(1), tenant=TenantId("other"))):
        world.state.refresh(tell(world.cluster, fact, 2))
    assert world.ready() == []
    assert model_view.routable(world.cluster, "chat") == []
    assert model_view.ready_count(world.cluster, world.model) == 0
    world.hear(unready("chat-1"))
    assert model_view.routable(world.cluster, "chat") == []
    assert [
        (each.reason, list(each.retire), [replica.job_id for replica in each.add])
        for each in world.said
        if isinstance(each, f.ReplicasScaled)
    ][1:] == [("undeployed", ["chat-1"], []), ("wanted", [], ["chat-2"])]
    assert world.cluster.jobs[JobId("chat-2")].tenant == "other"


def test_a_deployment_by_the_same_tenant_keeps_its_ready_replica_until_the_new_one_is() -> None:
    world = World(registered("a"), deployed(1))
    world.begin("chat-1")
    for fact in (f.ModelUndeployed(name="chat"), deployed(1)):
        world.state.refresh(tell(world.cluster, fact, 2))
    assert scaled(world.decide()) == [(["chat-2"], [])]
    assert world.ready() == ["chat-1"]
