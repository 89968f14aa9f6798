"""What operators say of devices: acts, refuses while somebody has them, stays quiet where it is so
already.
"""

import pytest

from libs.common.errors import Refused
from libs.common.facts import CancelRequested, GpuServiceSet, RequeueRequested
from libs.common.model import Allocation, Gpu, GpuId, JobId, NodeId, Serve, TenantId
from libs.common.state.cluster import Cluster, GpuView, Job
from services.api_gateway.intents.device_intents import ServiceFact, service
from services.api_gateway.problems import Problem
from tests.given import spec

UUID = GpuId("g")
OFFLINE = {"service": "offline", "user": "ada"}
FORCED = {**OFFLINE, "force": True}


def device(held_by: str = "", now: str = "online") -> GpuView:
    return GpuView(
        NodeId("n"),
        Gpu(UUID, 0, "nvidia", "H100", 1),
        service=now,
        holds={held_by: 100} if held_by else {},
    )


def said(body: object, view: GpuView, state: str = "running", **asked: object) -> list[ServiceFact]:
    job = Job(JobId("j"), spec(**asked), TenantId("t"), "eve", 1, state=state, attempt=2)
    return service(body, [view], Cluster(jobs={job.job_id: job}))


def fact(word: str) -> GpuServiceSet:
    return GpuServiceSet(uuid=UUID, service=word, user="ada")


def test_a_device_drains_under_its_job() -> None:
    assert said({"service": "draining", "user": "ada"}, device("j.2")) == [fact("draining")]


def test_what_is_so_already_is_not_said_again() -> None:
    assert said({"service": "draining"}, device("j.2", now="draining")) == []


def test_a_device_that_nobody_has_goes_offline() -> None:
    assert said(OFFLINE, device()) == [fact("offline")]


def test_a_device_that_somebody_has_does_not_go_offline() -> None:
    with pytest.raises(Problem, match="j still holds a part of it") as found:
        said(OFFLINE, device("j.2"))
    assert (found.value.status, found.value.more) == (409, {"jobs": ["j"]})


def test_by_force_a_job_waits_for_its_next_attempt() -> None:
    assert said(FORCED, device("j.2")) == [
        fact("offline"),
        RequeueRequested(job_id=JobId("j"), attempt=2, user="ada"),
    ]


def test_by_force_a_replica_an_allocation_and_what_must_not_run_twice_end() -> None:
    for asked in (
        {"serve": Serve(model="m", generation=1)},
        {"allocation": Allocation(expires_s=60)},
        {"requeue": False},
    ):
        first, ended = said(FORCED, device("j.2"), **asked)
        assert (
            first == fact("offline") and isinstance(ended, CancelRequested) and ended.user == "ada"
        )


def test_what_ends_already_or_is_not_known_any_more_is_left_alone() -> None:
    assert said(FORCED, device("j.2"), state="releasing") == [fact("offline")]
    assert said(FORCED, device("old.1")) == [fact("offline")]


def test_an_attempt_that_was_told_to_end_is_not_told_again() -> None:
    view = device("j.2", now="offline")
    job = Job(JobId("j"), spec(), TenantId("t"), "eve", 1, state="running", attempt=2)
    job.order.requeue = 2
    assert service(FORCED, [view], Cluster(jobs={job.job_id: job})) == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"service": "away"},
        {"service": "draining", "force": True},
        {"service": "offline", "force": "yes"},
        {"servce": "online"},
        [],
    ],
)
def test_what_means_nothing_is_refused(body: object) -> None:
    with pytest.raises(Refused):
        said(body, device())
