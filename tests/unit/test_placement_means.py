"""A job goes only to nodes that have what it needs beside devices: a node that lost MPS, its
container engine or MIG is no place for it.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.devices.means import ENFORCED, FLAGS, lost, only_tenants
from libs.common.model import IMAGES, MIG, MPS, JobId
from services.scheduler.decide.decide import decide
from services.scheduler.explain.explain import explain
from services.scheduler.placement import capacity, choose
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.reservations.reservations import put_off
from tests.given import given, registered, tell, waiting

J = JobId("j")
CARD = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
WISHES: dict[str, dict[str, Any]] = {
    MPS: {"isolation": MPS, "gpu_share": 50},
    IMAGES: {"image": "alpine"},
    MIG: {"mig_profile": "1g.10gb"},
}


def node(name: str, **isolation: str) -> f.NodeRegistered:
    plain = registered(name, 2, isolation=isolation)
    return replace(
        plain, gpus=tuple(replace(gpu, vendor="nvidia", mig_profiles=CARD) for gpu in plain.gpus)
    )


def homes(*history: Any) -> list[str]:
    return [
        member.node_id
        for fact in decide(given(*history), 0)
        if isinstance(fact, f.JobPlaced)
        for member in fact.members
    ]


@pytest.mark.attack
@pytest.mark.parametrize("means", list(WISHES))
def test_a_job_is_not_placed_on_a_node_that_lost_what_it_needs(means: str) -> None:
    job = waiting("j", **WISHES[means])
    poor, able = node("a", **{means: lost("it is broken")}), node("b", **{means: ENFORCED})
    assert homes(poor, job) == []
    assert homes(poor, able, job) == ["b"]
    assert homes(poor, waiting("j", gpu_share=50)) == ["a"]


@pytest.mark.parametrize("means", list(WISHES))
def test_why_says_what_the_node_lost_in_the_agent_s_own_words(means: str) -> None:
    found = explain(
        given(node("a", **{means: lost("{it} is broken")}), waiting("j", **WISHES[means])), J
    )
    (blocker,) = found["blockers"]
    assert blocker["what"].startswith(f"{FLAGS[means]} is not available there: ")
    assert blocker["what"].endswith("{it} is broken")


def test_an_image_is_not_run_by_an_agent_that_does_not_know_images() -> None:
    assert homes(node("a"), waiting("j", image="alpine")) == []


def test_a_device_that_cannot_be_shared_by_mps_is_not_chosen_for_it() -> None:
    plain = registered("a", 1)
    arc = replace(plain, gpus=tuple(replace(gpu, vendor="intel") for gpu in plain.gpus))
    assert homes(arc, waiting("j", isolation=MPS, gpu_share=50)) == []
    assert homes(arc, waiting("j", gpu_share=50)) == ["a"]


@pytest.mark.attack
def test_a_job_of_another_tenant_is_not_placed_on_a_node_that_takes_its_own_tenants_only() -> None:
    own, other = node("a", **only_tenants(["default", "lab"])), node("b")
    job = waiting("j", tenant="team")
    assert homes(own, job) == []
    assert homes(own, other, job) == ["b"]
    assert homes(own, waiting("j", tenant="lab")) == ["a"]
    assert homes(own, replace(own, incarnation=2, isolation={}), job) == ["a"]


def test_why_names_the_nodes_that_take_no_jobs_of_the_tenant() -> None:
    found = explain(given(node("a", **only_tenants(["default"])), waiting("j", tenant="team")), J)
    assert found["blockers"][0]["what"] == "takes no jobs of tenant team"


def test_cached_answers_for_many_tenants_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "REQUESTS_MAX", 1)
    found = given(node("a", **only_tenants(["t"])), node("b")).capacity
    assert [found.closed_to(tenant) for tenant in ("x", "t", "x", "x")] == [1, 0, 1, 1]


def test_a_node_that_takes_all_tenants_again_is_open_to_every_tenant() -> None:
    own = node("a", **only_tenants(["default"]))
    state = given(own, node("b"))
    assert state.capacity.closed_to("team") == 1
    state.refresh(tell(state.cluster, replace(own, incarnation=2, isolation={})))
    assert state.capacity.closed_to("team") == 0


def test_answers_for_many_requests_are_forgotten_and_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choose, "SERVING_MAX", 2)
    found = given(node("a"), node("b")).capacity
    asked = [ResourceRequest(gpus=gpus) for gpus in (1, 2, 3, 1)]
    assert [choose.possible(found, request) for request in asked] == [True, True, False, True]
    assert list(found.serving) == asked[2:]


def test_no_forecast_names_a_node_that_takes_no_jobs_of_the_tenant() -> None:
    state = given(node("a", **only_tenants(["default"])), node("b"), waiting("j", tenant="team"))
    assert put_off(state, state.cluster.jobs[J], {0: 5, 1: 7}) == {1: 7}
