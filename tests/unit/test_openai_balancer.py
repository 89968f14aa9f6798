"""The replica with the fewest requests outstanding; a failed one only when no other is left; none
twice for one request.
"""

from collections import Counter

from libs.common.model import JobId
from libs.common.state.cluster import Endpoint
from services.api_gateway.openai.balancer import SUSPECT_S, SUSPECTS_MAX, Balancer

A, B, C = (Endpoint(JobId(f"m-{i}"), "10.0.0.1", 7000 + i) for i in range(3))


def test_the_replica_with_the_fewest_outstanding_requests_is_picked() -> None:
    balancer = Balancer()
    for endpoint in (A, A, B, C, C):
        balancer.begin(endpoint)
    assert balancer.pick((A, B, C), (), 0.0) == B
    balancer.begin(B)
    balancer.begin(B)
    balancer.end(A)
    assert balancer.pick((A, B, C), (), 0.0) == A


def test_equals_take_turns() -> None:
    balancer = Balancer()
    assert Counter(balancer.pick((A, B, C), (), 0.0) for _ in range(300)) == {
        A: 100,
        B: 100,
        C: 100,
    }


def test_a_tried_replica_is_not_picked_again_and_nothing_left_is_none() -> None:
    balancer = Balancer()
    assert balancer.pick((A, B), (A,), 0.0) == B
    assert balancer.pick((A, B), (A, B), 0.0) is None
    assert balancer.pick((), (), 0.0) is None


def test_a_replica_that_failed_waits_behind_the_others_for_a_while() -> None:
    balancer = Balancer()
    balancer.failed(A, 10.0)
    balancer.begin(B)
    assert {balancer.pick((A, B), (), 10.0 + SUSPECT_S - 0.1) for _ in range(4)} == {B}
    assert balancer.pick((A, B), (B,), 10.1) == A
    assert balancer.pick((A, B), (), 10.0 + SUSPECT_S) == A


def test_a_replica_on_another_port_is_not_suspect() -> None:
    balancer = Balancer()
    balancer.failed(A, 10.0)
    again = Endpoint(A.job_id, A.address, 8000)
    balancer.begin(B)
    assert balancer.pick((again, B), (), 10.1) == again


def test_balancer_forgets_endpoints_whose_requests_are_over() -> None:
    balancer = Balancer()
    for number in range(3 * SUSPECTS_MAX):
        endpoint = Endpoint(A.job_id, A.address, number)
        balancer.begin(endpoint)
        balancer.failed(endpoint, float(number))
        balancer.end(endpoint)
    assert balancer.outstanding == {} and len(balancer.suspect_until) <= SUSPECTS_MAX
