"""The digest of a job's image: the first attempt resolves the tag, and all others use the same."""

from collections.abc import Sequence

import pytest
from hypothesis import given as generated
from hypothesis import strategies as st

from libs.common import facts as f
from libs.common.container_spec import is_digest, pinned
from libs.common.facts import AnyFact
from libs.common.messages import StartOrder
from libs.common.model import JobId, NodeId
from libs.common.state.job import Pin
from services.scheduler.decide.decide import decide
from services.scheduler.orders.orders import desired
from services.scheduler.state.state import State
from tests.given import ended, given, member, placed, registered, waiting

OLD, NEW = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


def nodes() -> list[AnyFact]:
    """Nodes that can run images."""
    return [registered(name, isolation={"images": "", "containers": ""}) for name in ("n0", "n1")]


def began(node: str, image: str, attempt: int = 1, in_registry: bool = True) -> f.JobStarted:
    return f.JobStarted(
        job_id=JobId("j"),
        attempt=attempt,
        node_id=NodeId(node),
        image=image,
        image_in_registry=in_registry,
    )


def gang(*facts: AnyFact, **wish: object) -> State:
    """A job on two nodes with an image, after these facts."""
    return given(
        *nodes(),
        waiting("j", image="team/x:1", nodes=2, gpus=1, **wish),
        placed("j", member("n0", 0), member("n1", 0, rank=1)),
        *facts,
    )


def pin_of(state: State) -> Pin | None:
    return state.cluster.jobs[JobId("j")].pin


def starts(state: State, node: str) -> Sequence[StartOrder]:
    return desired(state.cluster, NodeId(node), 1).starts


def test_the_next_attempt_is_ordered_with_the_digest_of_the_first() -> None:
    state = given(
        *nodes(),
        waiting("j", image="team/x:1", gpus=1, retries=1),
        placed("j", member("n0", 0)),
        began("n0", OLD),
        *ended("j", "n0", 1)[1:],
        f.JobRequeued(job_id=JobId("j"), attempt=1, reason="failed", counted=True),
        placed("j", member("n1", 0), attempt=2),
    )
    assert [order.pin for order in starts(state, "n1")] == [OLD]


def test_the_first_attempt_is_ordered_without_a_digest() -> None:
    assert [order.pin for order in starts(gang(), "n0")] == [""]


@pytest.mark.parametrize("image", ["", "latest", f"{OLD}/../../x", OLD.upper()])
def test_what_is_no_digest_pins_nothing(image: str) -> None:
    assert pin_of(gang(began("n0", image))) is None and not is_digest(image)


def test_an_image_that_no_registry_has_pins_nothing() -> None:
    assert pin_of(gang(began("n0", OLD, in_registry=False))) is None


def test_members_with_one_image_go_on() -> None:
    state = gang(began("n0", OLD), began("n1", OLD))
    assert pin_of(state) == Pin(OLD, 1, 0) and not decide(state, 0)


def test_a_gang_with_different_images_is_stopped_and_begins_again_with_one() -> None:
    state = gang(began("n1", NEW), began("n0", OLD))
    (stop,) = decide(state, 0)
    assert isinstance(stop, f.JobStopOrdered) and stop.reason == "images_differ"
    over = [
        fact
        for node in ("n0", "n1")
        for fact in ended("j", node, None, signal=15, reason="stopped")[1:]
    ]
    state = gang(began("n1", NEW), began("n0", OLD), stop, *over)
    (again,) = [fact for fact in decide(state, 0) if not isinstance(fact, f.JobPlaced)]
    assert again == f.JobRequeued(
        job_id=JobId("j"), attempt=1, reason="images_differ", counted=False
    )


def test_a_job_that_must_not_be_requeued_fails_with_different_images() -> None:
    stop = f.JobStopOrdered(
        job_id=JobId("j"), attempt=1, reason="images_differ", signal=15, grace_ms=0
    )
    over = [
        fact
        for node in ("n0", "n1")
        for fact in ended("j", node, None, signal=15, reason="stopped")[1:]
    ]
    (closed,) = decide(gang(began("n1", NEW), began("n0", OLD), stop, *over, requeue=False), 0)
    assert isinstance(closed, f.JobClosed)
    assert (closed.outcome, closed.reason) == ("failed", "images_differ")


def test_a_later_attempt_that_disobeys_is_not_stopped_for_ever() -> None:
    requeued = f.JobRequeued(job_id=JobId("j"), attempt=1, reason="failed", counted=True)
    state = gang(
        began("n0", OLD),
        began("n1", OLD),
        *ended("j", "n0", 1)[1:],
        *ended("j", "n1", 1)[1:],
        requeued,
        placed("j", member("n0", 0), member("n1", 0, rank=1), attempt=2),
        began("n0", OLD, attempt=2),
        began("n1", NEW, attempt=2),
        retries=1,
    )
    assert pin_of(state) == Pin(OLD, 1, 0) and not decide(state, 0)


@generated(st.permutations([("n0", OLD), ("n1", NEW)]))
def test_the_lowest_rank_counts_in_any_order(order: list[tuple[str, str]]) -> None:
    state = gang(*(began(node, image) for node, image in order))
    assert pin_of(state) == Pin(OLD, 1, 0)


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("busybox", f"busybox@{OLD}"),
        ("team/x:1", f"team/x@{OLD}"),
        ("host:5000/team/x", f"host:5000/team/x@{OLD}"),
        (f"host:5000/team/x:1@{NEW}", f"host:5000/team/x@{OLD}"),
    ],
)
def test_a_pinned_name_keeps_the_repository(image: str, name: str) -> None:
    assert pinned(image, OLD) == name
