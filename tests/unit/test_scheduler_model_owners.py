"""The rule `scale` when the name of a model changes its owner."""

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.model import JobId, TenantId
from libs.common.state import model_view
from services.scheduler.questions.why_model import explain_model
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


OTHER = TenantId("other")
REMOVED = f.TenantSet(tenant=OTHER, removed=True)
LATE = replace(deployed(1), tenant=OTHER)


def test_a_removed_tenant_deploys_nothing() -> None:
    world = World(registered("a"), f.TenantSet(tenant=OTHER), REMOVED)
    assert world.hear(LATE) == []
    assert "chat" not in world.cluster.models


def test_a_removed_tenant_deploys_no_model_again() -> None:
    gone = f.ModelUndeployed(name="chat", tenant=OTHER)
    world = World(registered("a"), f.TenantSet(tenant=OTHER), LATE, gone, REMOVED)
    assert world.hear(LATE) == []
    assert (world.model.deployed, world.living()) == (False, [])
    answer = explain_model(world.state, "chat")
    assert answer["answer"] == "it is not deployed: its tenant other was removed"
    assert answer["remedy"] is None


def test_the_removal_of_a_tenant_undeploys_a_model_that_was_deployed_meanwhile() -> None:
    world = World(registered("a"), f.TenantSet(tenant=OTHER), LATE)
    world.begin("chat-1")
    names = world.cluster.names_changes
    said = world.hear(REMOVED)
    (retired,) = (fact for fact in said if isinstance(fact, f.ReplicasScaled))
    assert (retired.retire, retired.add, retired.reason) == (("chat-1",), (), "undeployed")
    assert not world.model.deployed and world.cluster.names_changes > names
    assert model_view.state_of(world.cluster, world.model) == model_view.STOPPING
    answer = str(explain_model(world.state, "chat")["answer"])
    assert answer.endswith("its tenant other was removed; 1 replicas have not ended yet")
    world.end("chat-1", 0, reason="stopped")
    assert world.living() == [] and world.decide() == []
