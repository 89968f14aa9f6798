"""From where a node gets an upload: from nodes that have it, or as one of the first of many."""

from hashlib import sha256

import pytest

from libs.common.life import job_life
from libs.common.model import JobId, JobSpec, NodeId, TenantId
from libs.common.state.cluster import Cluster, Node
from libs.common.state.job import Elements, Job, MemberView
from services.api_gateway.agents.upload_sources import SEEDS, relatives, spread

SHA = "ab" * 32
ASKS = NodeId("asks")
NAMES = [f"n{number}" for number in range(6)]


def job(name: str, upload: str = SHA, tenant: str = "red", **states: str) -> Job:
    made = Job(JobId(name), JobSpec(command=("true",), upload=upload), TenantId(tenant), "ada", 1)
    made.members = {
        NodeId(each): MemberView(NodeId(each), 1, 0, (), 1, state) for each, state in states.items()
    }
    return made


def cluster_of(*jobs: Job) -> Cluster:
    names = {ASKS: None} | {each: None for found in jobs for each in found.members}
    nodes = {each: Node(each, "healthy", link_address="h:1") for each in names}
    return Cluster(nodes=nodes, jobs={each.job_id: each for each in jobs})


def gang(state: str, *names: str) -> Job:
    return job("j1", asks=job_life.PLACED, **dict.fromkeys(names, state))


def test_nodes_that_have_started_the_job_are_sources() -> None:
    made = gang(job_life.STARTED, "a", "b")
    made.members[NodeId("c")] = MemberView(NodeId("c"), 1, 0, (), 1, job_life.PLACED)
    made.members[NodeId("d")] = MemberView(NodeId("d"), 1, 0, (), 1, job_life.FINISHED)
    made.members[NodeId("e")] = MemberView(NodeId("e"), 1, 0, (), 1, job_life.LOST)
    found = spread(cluster_of(made), [made], ASKS, ())
    assert sorted(found.sources) == ["a", "b", "d"] and not found.is_seed


@pytest.mark.parametrize("state", [job_life.STARTED, job_life.PLACED])
def test_nodes_that_are_away_without_links_or_avoided_do_not_count(state: str) -> None:
    made = gang(state, "away", "revoked", "without", "avoided")
    cluster = cluster_of(made)
    cluster.nodes[NodeId("away")].state = "unreachable"
    cluster.nodes[NodeId("revoked")].revoked = "it wrote too much"
    cluster.nodes[NodeId("without")].link_address = ""
    found = spread(cluster, [made], ASKS, [NodeId("avoided")])
    assert found.sources == [] and found.is_seed


def test_a_node_of_the_same_rack_comes_first_and_nodes_have_orders_of_their_own() -> None:
    made = gang(job_life.STARTED, *NAMES)
    cluster = cluster_of(made)
    orders = {tuple(spread(cluster, [made], NodeId(name), ()).sources) for name in NAMES}
    assert len(orders) == len(NAMES)
    cluster.nodes[ASKS].measured_rack = cluster.nodes[NodeId("n3")].measured_rack = "m1"
    assert spread(cluster, [made], ASKS, ()).sources[0] == "n3"


def test_the_first_nodes_of_many_ask_a_gateway_and_the_others_wait() -> None:
    made = gang(job_life.PLACED, *NAMES)
    cluster = cluster_of(made)
    seeds = [each for each in made.members if spread(cluster, [made], each, ()).is_seed]
    first = sorted(made.members, key=lambda each: sha256(each.encode()).digest())
    assert sorted(seeds) == sorted(first[:SEEDS]) and len(seeds) == SEEDS


def test_jobs_with_the_same_upload_of_the_same_tenant_are_relatives() -> None:
    array = job("array")
    array.elements = Elements(alive={JobId("array.0"): 0, JobId("array.1"): 1})
    elements = [job(f"array.{number}", a=job_life.PLACED) for number in range(2)]
    for each in elements:
        each.array = array.job_id
    known = job("known", b=job_life.STARTED)
    others = [job("blue", tenant="blue"), job("other", upload="cd" * 32)]
    cluster = cluster_of(array, *elements, known, *others)
    names = [JobId(name) for name in ("known", "blue", "other", "gone")]
    found = relatives(cluster, elements[0], names)
    assert [each.job_id for each in found] == ["array.0", "known", "array.1"]
    alone = job("alone")
    alone.array = JobId("gone")
    assert relatives(cluster_of(alone), alone, ()) == [alone]
