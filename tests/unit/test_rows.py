"""Rows are encoded once for all clients that may see the same, until what they show changes."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from libs.common.model import JobId, NodeId
from services.api_gateway.access.roles import ADMIN, MEMBER, OPERATOR, Principal
from services.api_gateway.views import rows
from services.api_gateway.views.rows import Rows
from tests.given import given, member, placed, registered, waiting

ROOT = Principal("k", "default", "root", ADMIN)
OTHER_ROOT = Principal("l", "default", "op", OPERATOR)
ANN = Principal("m", "default", "ann", MEMBER)
EVE = Principal("n", "physics", "eve", MEMBER)
A = NodeId("a")


class Clock:
    """A clock that the test moves."""

    now_ns = 0

    def boot_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def gateway() -> Any:
    """The parts of a gateway that `Rows` reads."""
    state = given([registered("a", 2), *waiting("mine"), placed("mine", member("a", 0))])
    changed: dict[str, int] = {}
    return SimpleNamespace(
        cluster=state.cluster,
        pulse=SimpleNamespace(heard_ns=lambda node_id: 0),
        clock=Clock(),
        history=SimpleNamespace(changed=lambda job_id: changed.get(job_id, 0), seqs=changed),
        waiting=SimpleNamespace(node_seqs={}, device_seqs={}),
    )


def test_clients_that_may_see_the_same_share_a_row(gateway: Any) -> None:
    made = Rows(gateway)
    assert made.fleet(ROOT, A) is made.fleet(OTHER_ROOT, A)
    assert made.job(ROOT, JobId("mine")) is made.job(ANN, JobId("mine"))
    assert made.encoded == 2
    assert made.node(ROOT, A) is made.node(OTHER_ROOT, A)
    assert made.node(ANN, A) == made.node(ROOT, A)
    assert made.encoded == 4


def test_another_tenant_gets_a_row_of_its_own(gateway: Any) -> None:
    made = Rows(gateway)
    for show, secret in ((made.fleet, b"mine"), (made.node, b"mine")):
        theirs = show(EVE, A)
        assert theirs is not None and secret not in theirs
        own = show(ANN, A)
        assert own is not None and secret in own
    assert made.job(EVE, JobId("mine")) is None


def test_what_is_not_there_has_no_row(gateway: Any) -> None:
    made = Rows(gateway)
    assert made.job(ROOT, JobId("x")) is None
    assert made.node(ROOT, NodeId("x")) is None
    assert made.fleet(ROOT, NodeId("x")) is None


def test_a_commit_makes_the_rows_of_what_it_changed_anew(gateway: Any) -> None:
    made = Rows(gateway)
    for _ in range(2):
        made.job(ROOT, JobId("mine"))
        made.node(ROOT, A)
        made.fleet(ROOT, A)
    assert made.encoded == 3
    gateway.cluster.jobs[JobId("mine")].state = "running"
    gateway.history.seqs["mine"] = gateway.waiting.device_seqs[A] = 7
    row, device = made.job(ROOT, JobId("mine")), made.fleet(ROOT, A)
    assert row is not None and msgspec.json.decode(row)["state"] == "running"
    assert device is not None and b"IN_USE" in device
    made.node(ROOT, A)
    assert made.encoded == 5


def test_a_row_gets_old(gateway: Any) -> None:
    made = Rows(gateway)
    made.node(ROOT, A)
    gateway.clock.now_ns += rows.AGE_NS
    made.node(ROOT, A)
    assert made.encoded == 1
    gateway.clock.now_ns += 1
    made.node(ROOT, A)
    assert made.encoded == 2


def test_the_kept_rows_are_bounded_and_the_last_used_ones_stay(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Rows(gateway)
    sizes = [len(row or b"") for row in (made.job(ROOT, JobId("mine")), made.node(ROOT, A))]
    monkeypatch.setattr(rows, "KEPT_BYTES_MAX", sum(sizes))
    made.job(ROOT, JobId("mine"))
    made.fleet(ROOT, A)
    made.job(ROOT, JobId("mine"))
    assert made.encoded == 3
    made.node(ROOT, A)
    assert made.encoded == 4
