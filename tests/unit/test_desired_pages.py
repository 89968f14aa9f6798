"""A node's full desired state in pages: all of one answer as of one sequence, and the agent takes
only the whole.
"""

from typing import Any

import msgspec
import pytest

from libs.common import facts as f
from libs.common.container_spec import ContainerSpec
from libs.common.errors import Unavailable
from libs.common.messages import (
    Desired,
    DesiredAsk,
    Orders,
    StartOrder,
    StopOrder,
    by_bytes,
    digest,
)
from libs.common.model import Allocation, AttemptRef, JobId, NodeId, TenantId
from libs.common.state.cluster import Cluster
from libs.common.subjects import desired as desired_subject
from libs.common.transport.bus_memory import MemoryBus
from services.node_agent.core import state as agent_state
from services.node_agent.core.apply import apply
from services.node_agent.core.decide import decide
from services.node_agent.core.observations import OrdersReceived
from services.node_agent.desired import fetch
from services.scheduler.orders import desired_pages
from services.scheduler.orders.desired_pages import DesiredPages
from services.scheduler.orders.orders import NO_IMAGES, desired, node_digest, start_orders
from tests.given import (
    EPOCH,
    finished,
    given,
    member,
    placed,
    registered,
    started,
    tell,
    waiting,
)
from tests.given_node import start

A, B = NodeId("a"), NodeId("b")
PAGE = 1_000
JOBS = 9


def cluster(*nodes: str, jobs: int = JOBS) -> Cluster:
    history = [registered(node, gpus=jobs) for node in nodes]
    for node in nodes:
        for n in range(jobs):
            history += [
                *waiting(f"{node}{n}", env={"X": "x" * 200}),
                placed(f"{node}{n}", member(node, n)),
            ]  # type: ignore[list-item]
    return given(*history).cluster


def ask(
    pages: DesiredPages, state: Cluster, page: int = 0, seq: int = 0, node: NodeId = A
) -> Desired:
    return msgspec.msgpack.decode(
        pages.answer(state, node, EPOCH, DesiredAsk(node, 1, seq, page)), type=Desired
    )


def stop_all(state: Cluster) -> None:
    state.seq += 1
    for job in list(state.jobs.values()):
        tell(
            state, f.JobStopOrdered(job_id=job.job_id, attempt=1, reason="cancelled"), seq=state.seq
        )


def test_orders_are_split_by_bytes_and_keep_their_turn() -> None:
    orders = [start(f"j{n}") for n in range(50)]
    size = len(msgspec.msgpack.encode(orders[0]))
    parts = by_bytes(orders, 4 * size)
    assert [order for part in parts for order in part] == orders
    assert all(len(msgspec.msgpack.encode(part)) <= 4 * size + 5 for part in parts)
    assert max(len(part) for part in parts) >= 3


def test_an_order_larger_than_a_page_is_alone_and_not_dropped() -> None:
    orders = [start("small"), start("large" * 100), start("other")]
    assert by_bytes(orders, 300) == [[orders[0]], [orders[1]], [orders[2]]]
    assert by_bytes([], 300) == [[]]


def test_all_pages_of_one_answer_are_as_of_one_sequence_however_the_log_goes_on() -> None:
    state, pages = cluster("a"), DesiredPages(PAGE)
    whole = desired(state, A, EPOCH)
    got = [ask(pages, state)]
    stop_all(state)
    for number in range(1, got[0].pages):
        got.append(ask(pages, state, number, got[0].seq))
    assert got[0].pages >= 3
    assert tuple(one for page in got for one in page.starts) == whole.starts
    assert [one for page in got for one in page.stops] == []
    assert {page.seq for page in got} == {whole.seq}


def test_a_page_of_an_answer_that_is_not_kept_is_the_first_of_a_new_one() -> None:
    state, pages = cluster("a"), DesiredPages(PAGE)
    ask(pages, state)
    stop_all(state)
    other = ask(pages, state, 1, seq=state.seq - 5)
    assert (other.page, other.seq) == (0, state.seq)


def test_an_answer_is_dropped_with_its_last_page_and_one_of_one_page_is_never_kept() -> None:
    pages = DesiredPages(PAGE)
    state = cluster("a", jobs=1)
    assert ask(pages, state).pages == 1
    assert pages.kept == {}
    state = cluster("a")
    first = ask(pages, state)
    assert list(pages.kept) == [A]
    ask(pages, state, first.pages - 1, first.seq)
    assert pages.kept == {}


def test_kept_answers_are_bounded_by_bytes_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desired_pages, "KEPT_BYTES_MAX", 5_000)
    state, pages = cluster("a", "b"), DesiredPages(PAGE)
    ask(pages, state, node=A)
    ask(pages, state, node=B)
    assert list(pages.kept) == [B]


class Answering:
    """The scheduler's end on a bus; `between(page)` happens before that page is answered."""

    def __init__(self) -> None:
        self.bus = MemoryBus()
        self.pages = DesiredPages(PAGE)
        self.state = cluster("a")
        self.asked: list[int] = []

    async def answer(self, subject: str, data: bytes) -> bytes | None:
        wish = msgspec.msgpack.decode(data, type=DesiredAsk)
        self.asked.append(wish.page)
        if len(self.asked) == 3:
            stop_all(self.state)
            self.pages = DesiredPages(
                PAGE
            )  # as another scheduler, which keeps nothing of this one's
        return self.pages.answer(self.state, A, EPOCH, wish)


async def test_the_agent_uses_only_pages_of_one_sequence_and_starts_over_otherwise() -> None:
    end = Answering()
    await end.bus.subscribe(desired_subject("a"), end.answer)
    assert await fetch(end.bus, A, 1) == desired(end.state, A, EPOCH)
    assert end.asked[:5] == [0, 1, 2, 1, 2]


async def test_a_page_that_does_not_come_gives_nothing() -> None:
    end = Answering()

    async def deaf(subject: str, data: bytes) -> bytes | None:
        return None if len(end.asked) == 2 else await end.answer(subject, data)

    await end.bus.subscribe(desired_subject("a"), deaf)
    with pytest.raises(Unavailable):
        await fetch(end.bus, A, 1)


def test_an_agent_that_knows_no_options_of_containers_is_told_to_refuse_them() -> None:
    fact, wish = placed("j", member("a", 0)), {"image": "i:1", "container": ContainerSpec()}
    for isolation, kind in (
        ({"images": "enforced"}, StopOrder),
        ({"images": "enforced", "containers": "enforced"}, StartOrder),
    ):
        node = msgspec.structs.replace(registered("a"), isolation=isolation)
        state = given(node, *waiting("j", **wish), fact).cluster
        ((_, sent),) = start_orders(state, state.jobs[JobId("j")], fact, 7)
        assert isinstance(sent, kind)


def test_an_order_says_whether_the_tenant_has_credentials_for_the_image_s_registry() -> None:
    fact = placed("j", member("a", 0))
    node = msgspec.structs.replace(registered("a"), isolation={"images": "enforced"})
    for image, secret, login in (
        ("reg.example:5000/x:1", "registry.reg.example_5000", True),
        ("reg.example/x:1", "registry.reg.example_5000", False),
        ("x:1", "registry.docker.io", True),
    ):
        known = f.SecretSet(tenant=TenantId("default"), name=secret)
        state = given(node, known, *waiting("j", image=image), fact).cluster
        ((_, sent),) = start_orders(state, state.jobs[JobId("j")], fact, 7)
        assert isinstance(sent, StartOrder) and sent.registry is login


@pytest.mark.parametrize(
    ("isolation", "image", "begins"),
    [({}, "", True), ({}, "i:1", False), ({"images": "enforced"}, "i:1", True)],
)
def test_an_agent_that_knows_no_images_is_told_to_refuse_a_job_with_one(
    isolation: dict[str, str], image: str, begins: bool
) -> None:
    node = msgspec.structs.replace(registered("a"), isolation=isolation)
    state = given(node, *waiting("j", image=image), placed("j", member("a", 0))).cluster
    full = desired(state, A, EPOCH)
    fact = placed("j", member("a", 0))
    ((_, sent),) = start_orders(state, state.jobs[JobId("j")], fact, 7)
    assert ([order.job_id for order in full.starts] == ["j"], isinstance(sent, StartOrder)) == (
        begins,
        begins,
    )
    if not begins:
        assert [(stop.job_id, stop.reason) for stop in full.stops] == [("j", NO_IMAGES)]
        agent = agent_state.begin(A, 1, ())
        apply(agent, OrdersReceived(Orders(EPOCH, (sent,))), 0)
        (recorded,) = decide(agent, 0)
        assert recorded.facts == (
            f.JobRefused(job_id=JobId("j"), attempt=1, node_id=A, reason=NO_IMAGES),
        )  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("spec", "cancel", "stops"),
    [
        ({}, [], []),
        (
            {},
            [f.CancelRequested(job_id=JobId("j"), grace_s=3, signal=2)],
            [("cancelled", 2, 3_000)],
        ),
        ({"allocation": Allocation(expires_s=3_600)}, [], [("cancelled", 15, 10_000)]),
    ],
)
def test_a_job_that_has_ended_in_the_log_is_stopped_if_it_would_not_end_by_itself(
    spec: dict[str, Any], cancel: list[f.AnyFact], stops: list[tuple[str, int, int]]
) -> None:
    """Its end may be forged."""
    submitted, begun = waiting("j", grace_s=10, **spec), placed("j", member("a"))
    ended = [started("j", "a"), finished("j", "a"), *cancel]
    state = given(registered("a"), submitted, begun, ended).cluster
    found = desired(state, A, EPOCH)
    ref = AttemptRef(JobId("j"), 1)
    assert [start.job_id for start in found.starts] == ["j"]
    assert [(stop.reason, stop.signal, stop.grace_ms) for stop in found.stops] == stops
    ordered = [(ref, signal, grace) for _, signal, grace in stops]
    assert node_digest(state, A) == digest([ref], ordered, [])
