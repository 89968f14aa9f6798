"""The cells of a charge: each amount is split exactly, and no cell has more than its share."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from libs.common import facts as f
from libs.common.facts import ChargeLine, ChargePart, DeviceUse
from libs.common.model import JobId, TenantId
from services.audit.export.charge_cells import cells_of, parts_of

A, B = TenantId("a"), TenantId("b")


def charge(job: str = "m-1", **fields: Any) -> f.UsageCharged:
    values = {"share_ms": 1_000, **fields}
    return f.UsageCharged(job_id=JobId(job), attempt=1, tenant=A, user="ada", **values)


def test_a_job_s_charge_has_a_cell_for_each_price() -> None:
    parts = (ChargePart("h", 400, 9, 30, "EUR"), ChargePart("h", 600, 0, 0, ""))
    use = DeviceUse(devices=1, sampled_ms=9, energy_mj=100)
    found = cells_of(charge("j1", parts=parts, busy_share_ms=500, idle_share_ms=250, use=use))
    assert [(cell.kind, cell.user, cell.gpu, cell.currency) for cell in found] == [
        ("job", "ada", "h", "EUR"),
        ("job", "ada", "h", ""),
    ]
    assert [cell.share_ms for cell in found] == [400, 600]
    assert [cell.cost_micros for cell in found] == [30, 0]
    assert [cell.busy_share_ms for cell in found] == [200, 300]
    assert [cell.idle_share_ms for cell in found] == [100, 150]
    assert [cell.energy_mj for cell in found] == [40, 60]


def test_a_replica_s_charge_has_a_cell_for_each_key_and_one_for_idle_time() -> None:
    lines = (ChargeLine(B, "bob", "k2", 600), ChargeLine(A, "ada", "k1", 100))
    found = cells_of(charge(lines=lines, parts=(ChargePart("h", 1_000, 1, 10, "EUR"),)))
    assert [(cell.tenant, cell.kind, cell.share_ms, cell.cost_micros) for cell in found] == [
        ("b", "requests", 600, 6),
        ("a", "requests", 100, 1),
        ("a", "idle", 300, 3),
    ]
    assert {cell.model for cell in found} == {"m"}


def test_an_older_charge_has_one_part_without_a_price() -> None:
    assert parts_of(charge()) == (ChargePart("", 1_000),)
    assert parts_of(charge(parts=(ChargePart("h", 7),))) == (ChargePart("", 1_000),)


@given(
    st.lists(st.integers(0, 1 << 40), max_size=6),
    st.lists(st.integers(0, 1 << 40), min_size=1, max_size=6),
    st.data(),
)
def test_cells_add_up_to_the_charge(
    lines: list[int], parts: list[int], data: st.DataObject
) -> None:
    share_ms = sum(parts)
    keys = [min(line, share_ms // max(1, len(lines))) for line in lines]
    busy = data.draw(st.integers(0, share_ms))
    idle = data.draw(st.integers(0, share_ms - busy))
    costs = [data.draw(st.integers(0, 1 << 40)) for _ in parts]
    fact = charge(
        share_ms=share_ms,
        lines=tuple(ChargeLine(B, "u", f"k{at}", share) for at, share in enumerate(keys)),
        parts=tuple(
            ChargePart("h", share, 1, cost, "EUR") for share, cost in zip(parts, costs, strict=True)
        ),
        busy_share_ms=busy,
        idle_share_ms=idle,
        use=DeviceUse(devices=1, sampled_ms=1, energy_mj=data.draw(st.integers(-1, 1 << 40))),
    )
    found = cells_of(fact)
    assert sum(cell.share_ms for cell in found) == share_ms
    assert sum(cell.cost_micros for cell in found) == sum(costs)
    assert sum(cell.busy_share_ms for cell in found) == busy
    assert sum(cell.idle_share_ms for cell in found) == idle
    assert fact.use is not None
    assert sum(cell.energy_mj for cell in found) == max(0, fact.use.energy_mj)
    for cell in found:
        assert 0 <= cell.busy_share_ms + cell.idle_share_ms <= cell.share_ms
