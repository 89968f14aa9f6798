"""Orders that acknowledged facts mean for nodes: stops, and lists of resident data."""

import pytest

from libs.common import facts as f
from libs.common.messages import KeepList, StopOrder
from libs.common.model import JobId, NodeId
from libs.common.model_spec import ModelSpec
from libs.common.state.cluster import Cluster
from services.scheduler.orders.orders import desired, keep_lists, stop_orders
from tests.given import EPOCH, ended, given, member, registered, tell, waiting
from tests.given import placed as job_placed

A, B = NodeId("a"), NodeId("b")
J = JobId("j")
WISH = f.ModelKeepRequested(model="chat", tier="host", weights="/weights")


@pytest.mark.parametrize(
    ("fact", "reason"),
    [
        (f.JobStopOrdered(job_id=J, attempt=2, reason="expired", signal=2, grace_ms=9), "expired"),
        (f.JobPreempted(job_id=J, attempt=2, by=JobId("k"), signal=2, grace_ms=9), "preempted"),
    ],
)
def test_every_node_of_an_attempt_is_told_why_it_stops(
    fact: f.JobStopOrdered | f.JobPreempted, reason: str
) -> None:
    order = StopOrder(job_id=J, attempt=2, seq=7, reason=reason, signal=2, grace_ms=9)
    assert list(stop_orders(fact, (A, B), 7)) == [(A, order), (B, order)]


def keeping(keeps: bool = True) -> Cluster:
    """Two nodes, of which `a` keeps a tier of the model `chat`."""
    return given(
        registered("a", keeps=keeps),
        registered("b", keeps=keeps),
        f.ModelDeployed(name="chat", spec=ModelSpec(command=("serve",))),
        WISH,
    ).cluster


def placed(cluster: Cluster) -> f.KeptPlaced:
    request = cluster.kept["chat/host"].request
    return f.KeptPlaced(model="chat", tier="host", node_id=A, request=request, number=1)


def test_a_node_gets_its_whole_list_when_what_it_keeps_changed() -> None:
    cluster = keeping()
    fact = placed(cluster)
    ((node_id, sent),) = keep_lists(cluster, [fact], [tell(cluster, fact)], 9)
    assert (node_id, sent.seq) == (A, 9)
    (order,) = sent.entries
    assert (order.model, order.tier, order.number, order.weights) == ("chat", "host", 1, "/weights")


def test_a_list_leaves_out_what_was_evicted() -> None:
    cluster = keeping()
    fact = placed(cluster)
    tell(cluster, fact)
    gone = f.KeptEvicted(model="chat", tier="host", node_id=A, request=fact.request, reason="room")
    assert list(keep_lists(cluster, [gone], [tell(cluster, gone)], 10)) == [(A, KeepList(10, ()))]


def test_an_agent_that_cannot_keep_data_gets_an_empty_list() -> None:
    cluster = keeping(keeps=False)
    fact = placed(cluster)
    assert list(keep_lists(cluster, [fact], [tell(cluster, fact)], 9)) == [(A, KeepList(9, ()))]


def test_a_commit_about_other_things_sends_no_list() -> None:
    cluster = keeping()
    tell(cluster, placed(cluster))
    lost = f.NodeLost(node_id=A, incarnation=1)
    assert list(keep_lists(cluster, [lost], [tell(cluster, lost)], 9)) == []


def test_a_node_accounts_for_a_member_until_its_devices_are_released() -> None:
    members = (member("a", 0), member("b", 0, rank=1))
    gang = [*waiting("j", nodes=2), job_placed("j", *members)]
    cluster = given(registered("a"), registered("b"), gang, ended("j", "a")).cluster
    assert desired(cluster, A, EPOCH).starts == ()
    (start,) = desired(cluster, B, EPOCH).starts
    assert (start.job_id, start.rank) == (J, 1)
