"""Open requests: what a replica has open, and each request's part of the replica's time."""

from libs.common.model import JobId
from libs.common.state.cluster import Endpoint
from services.api_gateway.openai.open_requests import OpenRequests

A, B = (Endpoint(JobId(f"m-{i}"), "10.0.0.1", 7000 + i) for i in range(2))


def test_requests_are_counted_by_replica_and_idle_replicas_are_forgotten() -> None:
    found = OpenRequests()
    begun = [found.begin(endpoint, 0) for endpoint in (A, A, B)]
    assert found.counts == {A: 2, B: 1}
    found.end(A, 1, begun[0])
    assert found.counts == {A: 1, B: 1}
    found.end(A, 1, begun[1])
    found.end(B, 1, begun[2])
    assert found.counts == {} == found._parts


def test_a_request_that_is_alone_has_all_of_the_time() -> None:
    found = OpenRequests()
    begun = found.begin(A, 100)
    assert found.end(A, 130, begun) == 30
    assert found.end(A, 250, found.begin(A, 200)) == 50


def test_requests_that_overlap_share_the_time_equally() -> None:
    found = OpenRequests()
    first = found.begin(A, 0)
    second = found.begin(A, 100)
    other = found.begin(B, 100)
    assert found.end(A, 200, first) == 100 + 50
    assert found.end(A, 300, second) == 50 + 100
    assert found.end(B, 300, other) == 200


def test_the_parts_never_exceed_the_time_of_the_replica() -> None:
    found = OpenRequests()
    begun = [found.begin(A, at) for at in (0, 1, 2, 5)]
    parts = [found.end(A, at, each) for at, each in zip((7, 8, 9, 11), begun, strict=True)]
    assert sum(parts) <= 11 and all(parts)
