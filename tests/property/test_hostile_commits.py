"""Whatever a node publishes, every reader goes on, all come to the same state, it can be stored,
and other nodes' jobs are untouched.
"""

from random import Random
from typing import Any, Final

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common import fold, reading, subjects
from libs.common.facts import Commit
from libs.common.model import GpuId, JobId, NodeId
from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot
from services.audit.store.reading import read as archived
from services.quota.state import State as QuotaState
from services.scheduler.decide.decide import decide
from services.scheduler.state.state import State
from tests.attack.hostile import Hostile
from tests.history import SECOND, History, begun, copy, member, placed, started

STEPS: Final = 60
BYSTANDER: Final = "bystander"


def world() -> History:
    """A job that runs on n2, one on n1, the hostile node, and one that waits."""
    history = begun(nodes=2, gpus=2)
    for name, node_id in ((BYSTANDER, "n2"), ("own", "n1")):
        history.queue(name)
        assert history.say(placed(name, member(node_id, f"{node_id}g1")), started(name, node_id))
    history.queue("waits", gpus=2)
    return history


def untouched(cluster: Cluster) -> list[Any]:
    """Everything of the other node, of its devices and of its job."""
    job = cluster.jobs[JobId(BYSTANDER)]
    gpus = [cluster.gpus[GpuId(f"n2g{number}")] for number in (1, 2)]
    picture: list[Any] = msgspec.to_builtins(
        [job, cluster.nodes[NodeId("n2")].gpus, cluster.nodes[NodeId("n2")].state, gpus]
    )
    return picture


def heard(state: State | QuotaState | Cluster, data: bytes) -> Commit:
    """Fold one message as the reader of this state does."""
    cluster = state if isinstance(state, Cluster) else state.cluster
    subject = subjects.node("n1")
    commit = reading.read(cluster.writers, subject, data)
    if isinstance(state, Cluster):
        fold.apply_entry(state, state.seq + 1, subject, commit)
    else:
        state.apply_entry(state.seq + 1, subject, commit)
    return commit


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_readers_agree_on_a_hostile_node_s_commits_and_other_nodes_are_untouched(seed: int) -> None:
    history = world()
    hostile = Hostile(
        chance=Random(seed),
        node="n1",
        others=("n2",),
        jobs=(BYSTANDER, "own", "waits"),
        uuids=("n1g1", "n2g1", "n2g2"),
    )
    hostile.number, hostile.incarnation = history.numbers[subjects.node("n1")], 1
    gateway, before = history.cluster, untouched(history.cluster)
    scheduler, quota, trimmer = State(copy(gateway)), QuotaState(copy(gateway)), copy(gateway)
    scheduler.epoch = gateway.epoch
    for _ in range(STEPS):
        data = hostile.next()
        for reader in (gateway, scheduler, quota, trimmer):
            heard(reader, data)
        assert gateway == scheduler.cluster == quota.cluster == trimmer
        assert untouched(gateway) == before
        archived(gateway.seq, subjects.node("n1"), data)
    assert snapshot.decode(snapshot.encode(gateway)) == gateway
    decide(scheduler, gateway.seq * SECOND)
