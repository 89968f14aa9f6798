"""Open requests: what a replica has open, and nothing of those that have none."""

from libs.common.model import JobId
from libs.common.state.cluster import Endpoint
from services.api_gateway.openai.open_requests import OpenRequests

A, B = (Endpoint(JobId(f"m-{i}"), "10.0.0.1", 7000 + i) for i in range(2))


def test_requests_are_counted_by_replica_and_idle_replicas_are_forgotten() -> None:
    found = OpenRequests()
    for endpoint in (A, A, B):
        found.begin(endpoint)
    assert found.counts == {A: 2, B: 1}
    found.end(A)
    assert found.counts == {A: 1, B: 1}
    found.end(A)
    found.end(B)
    assert found.counts == {}
