"""The time of all GPUs: its parts add up to it, whatever lies in the time that was asked for."""

from typing import Any

import pytest

from libs.common import bounds
from libs.common import facts as f
from libs.common.facts import ChargePart
from libs.common.messages.usage_messages import FleetLine
from libs.common.model import JobId, NodeId, TenantId
from services.api_gateway.views.usage import with_running
from services.audit.export import fleet_use
from services.audit.export.fleet_use import FleetUse
from tests.given import SECOND_NS, given, member, placed, registered, started, waiting

MODEL = "Simulated H100"
N = NodeId("n")


def use(since_s: int = 0, until_s: int = 100) -> FleetUse:
    return FleetUse(since_s * SECOND_NS, until_s * SECOND_NS)


def add(found: FleetUse, fact: f.AnyFact, at_s: int) -> None:
    found.add(fact, at_s * SECOND_NS)


def charge(share_ms: int, began_s: int, ended_s: int, **fields: Any) -> f.UsageCharged:
    return f.UsageCharged(
        job_id=JobId("j"),
        attempt=1,
        tenant=TenantId("default"),
        share_ms=share_ms,
        began_ns=began_s * SECOND_NS,
        ended_ns=ended_s * SECOND_NS,
        parts=(ChargePart(MODEL, share_ms),),
        **fields,
    )


def test_a_node_counts_from_its_registration_until_it_is_lost() -> None:
    found = use(since_s=10)
    add(found, registered("n", 2), 0)
    add(found, f.NodeLost(node_id=N, incarnation=1), 30)
    add(found, f.NodeReturned(node_id=N, incarnation=1), 50)
    add(found, registered("n", 1, incarnation=2), 60)
    add(found, f.NodeRemoved(node_id=N), 70)
    add(found, f.NodeRemoved(node_id=N), 80)
    add(found, f.NodeReturned(node_id=NodeId("unknown"), incarnation=1), 80)
    add(found, f.QuotaTermBegan(instance="q"), 80)
    assert found.answer() == [FleetLine(MODEL, 100 * 1_000 * (2 * 20 + 2 * 10 + 10))]


def test_a_charge_counts_with_the_part_of_it_in_that_time() -> None:
    found = use(since_s=50)
    add(found, registered("n", 1), 0)
    add(found, charge(8_000, 40, 60, busy_share_ms=4_000, idle_share_ms=2_000), 60)
    add(found, charge(8_000, 1, 50), 60)
    (line,) = found.answer()
    assert (line.busy_share_ms, line.idle_share_ms, line.unmeasured_share_ms) == (
        2_000,
        1_000,
        1_000,
    )


def test_an_older_charge_counts_when_it_was_recorded() -> None:
    found = use()
    add(found, charge(7, 0, 0), 99)
    add(found, charge(9, 0, 0), 100)
    (line,) = found.answer()
    assert line.unmeasured_share_ms == 7


def test_models_beyond_the_bound_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_use, "MODELS_MAX", 0)
    found = use()
    add(found, registered("n", 1), 0)
    assert [line.gpu for line in found.answer()] == ["other"]


def test_what_runs_and_what_is_left_add_up_to_the_capacity() -> None:
    cluster = given(
        registered("n", 2),
        waiting("j"),
        placed("j", member("n", 0)),
        started("j", "n"),
        waiting("k"),
    ).cluster
    cluster.jobs[JobId("j")].placed_ns = 90 * SECOND_NS
    found = use()
    add(found, registered("n", 2), 0)
    add(found, charge(1_000_000, 10, 20, busy_share_ms=400_000), 20)
    (line,) = with_running(found.answer(), cluster, 0, 100 * SECOND_NS)
    assert line == FleetLine(
        MODEL,
        capacity_share_ms=20_000_000,
        busy_share_ms=400_000,
        unmeasured_share_ms=600_000,
        running_share_ms=1_000_000,
        unallocated_share_ms=18_000_000,
    )


def test_more_allocated_than_there_was_raises_the_capacity() -> None:
    cluster = given(registered("n", 1), waiting("j"), placed("j", member("n", 0))).cluster
    cluster.jobs[JobId("j")].placed_ns = 1
    (line,) = with_running([], cluster, 0, SECOND_NS)
    assert line.capacity_share_ms == line.running_share_ms and line.unallocated_share_ms == 0


def test_a_registration_that_every_fold_ignores_for_its_size_adds_no_devices() -> None:
    found = use()
    found.add(registered("n", bounds.COUNTS["gpus"] + 1), SECOND_NS)
    assert found.answer() == []
