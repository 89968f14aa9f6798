"""Undeployed models leave the state, and no id of a replica is used twice."""

from typing import Any, Final

import msgspec
import pytest

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.change import Stamp
from libs.common.facts import AnyFact, Commit
from libs.common.folds import former_fold
from libs.common.life import kept_life
from libs.common.model import JobId, TenantId
from libs.common.model_spec import ModelSpec
from libs.common.state.cluster import Cluster
from libs.common.state.former_models import FORMER_STAY_NS, FormerModel
from libs.common.transport import snapshot
from services.api_gateway.access.roles import MEMBER, Principal
from services.api_gateway.views.fact_stream import FactFilter
from tests.given import registered
from tests.history import picture, subject_of
from tests.unit.model_world import World, deployed, scaled

STAY_S: Final = FORMER_STAY_NS // 1_000_000_000
TENANT: Final = TenantId("default")


def other(name: str = "other") -> f.ModelDeployed:
    return f.ModelDeployed(name=name, spec=ModelSpec(command=("x",), replicas=0))


def undeployed() -> World:
    """A world in which the model `chat` was deployed and undeployed, and its replica has ended."""
    world = World(registered("a"), deployed(1))
    world.begin("chat-1")
    world.hear(f.ModelUndeployed(name="chat"))
    world.end("chat-1", None, signal=15, reason="stopped")
    return world


def later(world: World, *facts: AnyFact, seconds: float = STAY_S) -> list[AnyFact]:
    return world.hear(*facts, at_s=world.at_s + seconds)


def test_an_undeployed_model_leaves_the_state_with_a_deployment_some_time_later() -> None:
    world = undeployed()
    later(world, other("early"), seconds=STAY_S - 1)
    assert "chat" in world.cluster.models
    later(world, other(), seconds=1)
    assert list(world.cluster.models) == ["early", "other"]
    assert world.cluster.former_models == {"chat": FormerModel(TENANT, 3, 1, 2)}


def test_the_end_of_a_replica_that_was_folded_ahead_gets_the_time_of_its_commit() -> None:
    world = undeployed()
    close = f.JobClosed(job_id=JobId("chat-1"), attempt=1, outcome="cancelled")
    seq, epoch = world.cluster.seq, world.cluster.epoch
    commit = Commit(f.VERSION, f.VERSION, subjects.SCHEDULER, 1, epoch, 7_000, seq, (close,))
    fold.pass_over(world.cluster, seq + 1, subjects.SCHEDULER, commit)
    assert world.cluster.models["chat"].last_ended_ns == 7_000


def test_a_deployment_by_a_gateway_whose_clock_is_hours_ahead_removes_no_model() -> None:
    """The scheduler may have decisions about the model that the log does not have yet."""
    world = undeployed()
    later(world, other(), seconds=20 * 3_600)
    assert "chat" in world.cluster.models


def test_a_redeployment_makes_models_leave_too() -> None:
    world = undeployed()
    world.hear(other())
    later(world, other())
    assert list(world.cluster.models) == ["other"]


def test_a_name_that_is_deployed_again_continues_its_generations_and_ordinals() -> None:
    world = undeployed()
    later(world, other())
    assert scaled(world.hear(deployed(1))) == [(["chat-2"], [])]
    assert (world.model.generation, world.model.owner_seq) == (2, 3)
    assert world.cluster.former_models == {}


def test_the_name_of_another_tenant_belongs_to_the_new_one_from_its_deployment_on() -> None:
    world = undeployed()
    later(world, other())
    world.hear(msgspec.structs.replace(deployed(1), tenant=TenantId("physics")))
    assert (world.model.tenant, world.model.generation) == ("physics", 2)
    assert world.model.owner_seq == world.model.seq


def test_a_model_stays_while_it_is_deployed_has_replicas_or_data_on_nodes() -> None:
    world = World(registered("a"), deployed(1))
    later(world, other())
    assert "chat" in world.cluster.models
    world.begin("chat-1")
    world.hear(f.ModelUndeployed(name="chat"))
    later(world, other())
    assert "chat" in world.cluster.models
    world.end("chat-1", None, signal=15, reason="stopped")
    world.hear(other())
    assert "chat" in world.cluster.models
    world.hear(f.ModelKeepRequested(model="chat", tier=kept_life.HOST, weights="/w"))
    later(world, other())
    assert "chat" in world.cluster.models
    world.hear(f.ModelKeepDropped(model="chat", tier=kept_life.HOST), other())
    assert "chat" not in world.cluster.models


def test_the_scheduler_does_not_ask_for_a_model_that_has_left() -> None:
    world = undeployed()
    world.state.restless.models["chat"] = None
    later(world, other())
    assert list(world.state.restless.models) == []


def test_names_without_a_record_begin_behind_the_ordinals_of_dropped_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(former_fold, "FORMER_KEPT", 1)
    world = undeployed()
    world.hear(other("second"), f.ModelUndeployed(name="second"))
    later(world, other())
    later(world, other())
    assert list(world.cluster.former_models) == ["second"]
    assert world.cluster.ordinal_floor == 2
    assert scaled(world.hear(deployed(1))) == [(["chat-2"], [])]
    assert scaled(world.hear(f.ModelScaled(name="chat", replicas=2))) == [(["chat-3"], [])]


def test_replicas_of_older_versions_are_folded_although_their_numbers_are_below_the_floor() -> None:
    world = World(registered("a"), other())
    world.cluster.ordinal_floor = 7
    world.hear(deployed(0))
    world.cluster.ordinal_floor = 9
    assert world.model.free_ordinal == 7
    world.state.apply_own([f.ReplicasScaled(model="chat", generation=1, add=replica("chat-1"))], 1)
    assert JobId("chat-1") in world.cluster.jobs
    assert world.model.free_ordinal == 7


def replica(name: str) -> tuple[Any, ...]:
    world = World(registered("a"), deployed(1))
    added = next(fact.add for fact in world.said if isinstance(fact, f.ReplicasScaled))
    return (msgspec.structs.replace(added[0], job_id=JobId(name)),)


def test_the_owner_still_reads_the_facts_of_a_model_that_has_left() -> None:
    world = undeployed()
    later(world, other())
    fact = f.ModelAutoscaled(name="chat", generation=1, replicas=1)
    commit = Commit(f.VERSION, f.VERSION, subjects.SCHEDULER, 1, 1, 1, 1, (fact,))

    def seen(tenant: str) -> list[Any]:
        return FactFilter(world.cluster, Principal("k", tenant, "ada", MEMBER)).matching(commit, 9)

    assert seen(TENANT) == [fact]
    assert seen("physics") == []


def test_a_snapshot_holds_the_records() -> None:
    world = undeployed()
    later(world, other())
    world.cluster.ordinal_floor = 3
    read = snapshot.decode(snapshot.encode(world.cluster))
    assert read is not None and picture(read) == picture(world.cluster)


@pytest.mark.parametrize("between_s", [0, STAY_S - 1, STAY_S, 2 * STAY_S])
def test_a_departure_commutes_with_the_end_of_the_last_replica(between_s: int) -> None:
    """The scheduler folds the end ahead of the log, and its clock is near those of gateways."""
    world = World(registered("a"), deployed(1))
    world.begin("chat-1")
    world.hear(f.ModelUndeployed(name="chat"))
    end = f.JobClosed(job_id=JobId("chat-1"), attempt=1, outcome="cancelled")
    end_s = world.at_s + STAY_S + 5
    world.cluster.jobs[JobId("chat-1")].state = "releasing"
    for member in world.cluster.jobs[JobId("chat-1")].members.values():
        member.state = "released"
    data = msgspec.msgpack.encode(world.cluster)
    seen = []
    for order in ((end, other()), (other(), end)):
        cluster = msgspec.msgpack.decode(data, type=Cluster)
        for fact in order:
            tell_at(cluster, fact, end_s)
        tell_at(cluster, other("last"), end_s + between_s)
        seen.append((list(cluster.models), cluster.former_models))
    assert seen[0] == seen[1]
    assert ("chat" in seen[0][0]) == (between_s < STAY_S)


def tell_at(cluster: Cluster, fact: AnyFact, at_s: float) -> None:
    """Fold one fact that its right writer records at this time."""
    subject = subject_of(fact)
    stamp = Stamp(
        seq=cluster.seq + 1,
        at_ns=int(at_s * 1_000_000_000),
        epoch=cluster.epoch,
        writer=subjects.writer_kind(subject),
        writer_id=subjects.node_of(subject),
    )
    fold.apply(cluster, fact, stamp)
