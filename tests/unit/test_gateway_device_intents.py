"""Requests about devices.

The gateway records them, refuses them while a job holds the device, and records nothing when the
device is in that state already.
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
        Gpu(uuid=UUID, index=0, vendor="nvidia", model="H100", memory_bytes=1),
        service=now,
        holds={held_by: 100} if held_by else {},
    )


def said(body: object, view: GpuView, state: str = "running", **asked: object) -> list[ServiceFact]:
    job = Job(
        job_id=JobId("j"),
        spec=spec(**asked),
        tenant=TenantId("t"),
        user="eve",
        seq=1,
        state=state,
        attempt=2,
    )
    return service(body, [view], Cluster(jobs={job.job_id: job}))


def fact(word: str) -> GpuServiceSet:
    return GpuServiceSet(uuid=UUID, service=word, user="ada")


def test_a_device_drains_under_its_job() -> None:
    assert said({"service": "draining", "user": "ada"}, device("j.2")) == [fact("draining")]


def test_unchanged_state_is_not_recorded_again() -> None:
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


def test_forced_removal_ends_replicas_allocations_and_jobs_without_requeue() -> None:
    for asked in (
        {"serve": Serve(model="m", generation=1)},
        {"allocation": Allocation(expires_s=60)},
        {"requeue": False},
    ):
        first, ended = said(FORCED, device("j.2"), **asked)
        assert (
            first == fact("offline") and isinstance(ended, CancelRequested) and ended.user == "ada"
        )


def test_ending_or_unknown_jobs_are_left_alone() -> None:
    assert said(FORCED, device("j.2"), state="releasing") == [fact("offline")]
    assert said(FORCED, device("old.1")) == [fact("offline")]


def test_an_attempt_that_was_told_to_end_is_not_told_again() -> None:
    view = device("j.2", now="offline")
    job = Job(
        job_id=JobId("j"),
        spec=spec(),
        tenant=TenantId("t"),
        user="eve",
        seq=1,
        state="running",
        attempt=2,
    )
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
def test_meaningless_request_is_refused(body: object) -> None:
    with pytest.raises(Refused):
        said(body, device())
