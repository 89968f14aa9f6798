"""The history of charges: the newest ones, their use of devices, and sums that are exact."""

import csv
import io
from typing import Any

from libs.common import facts as f
from libs.common.facts import ChargeLine, ChargePart, DeviceUse
from libs.common.messages import usage_messages as m
from libs.common.messages.usage_messages import ChargesAsk
from libs.common.model import JobId, TenantId
from services.api_gateway.views.charges import as_csv, charges_shown, use_shown
from services.api_gateway.views.usage import money
from services.audit.export.charges import ROWS_MAX, Newest

USE = DeviceUse(
    devices=2,
    used=2,
    sampled_ms=100_000,
    busy_ms=50_000,
    peak_percent=80,
    memory_peak_bytes=40 << 30,
    memory_bytes=80 << 30,
    energy_mj=3_600_000,
    simulated=True,
)


def charge(job: str, tenant: str = "a", user: str = "ada", **fields: Any) -> f.UsageCharged:
    return f.UsageCharged(
        job_id=JobId(job), attempt=1, tenant=TenantId(tenant), user=user, share_ms=1_000, **fields
    )


def newest(*facts: f.AnyFact, limit: int = 10, tenant: str = "", user: str = "") -> Newest:
    found = Newest(ChargesAsk(since_ns=0, until_ns=1, limit=limit, tenant=tenant, user=user))
    for at_ns, fact in enumerate(facts):
        found.add(fact, at_ns)
    return found


def test_the_newest_come_first_and_the_older_ones_are_counted() -> None:
    found = newest(
        charge("j1"), charge("j2"), f.QuotaTermBegan(instance="q"), charge("j3"), limit=2
    )
    answer = found.answer(7)
    assert [row.charge.job_id for row in answer.rows] == ["j3", "j2"]
    assert (answer.left_out, answer.seq) == (1, 7)
    assert m.decode_charges(m.encode(answer)) == answer
    assert newest(limit=10**9).rows.maxlen == ROWS_MAX


def test_a_charge_has_its_use_and_its_cost_and_no_lines_of_others() -> None:
    line = ChargeLine(TenantId("b"), "bob", "k", 5)
    parts = (ChargePart("H100", 600, 1, 2_500_000, "EUR"), ChargePart("A100", 400, 1, 1, "USD"))
    made = charge("m-1", lines=(line,), parts=parts, use=USE, busy_share_ms=500, idle_share_ms=300)
    answer = newest(made, charge("j1")).answer(1)
    assert answer.rows[1].charge.lines == ()
    first, second = charges_shown(answer).charges
    assert (first.model, first.gpu, first.cost, first.use) == ("", "", "", None)
    assert (second.model, second.gpu) == ("m", "H100, A100")
    assert second.cost == "2.50 EUR, 0.000001 USD" and second.unmeasured_share_ms == 200
    assert second.use is not None and second.use.average_percent == 50
    assert second.use.energy_wh == 1.0 and second.use.hints == []


def test_the_total_is_the_sum_of_the_rows() -> None:
    parts = (ChargePart("H100", 1_000, 1, 7, "EUR"),)
    made = charge("j1", parts=parts, use=USE, busy_share_ms=500, idle_share_ms=300)
    total = charges_shown(newest(made, made, charge("j2")).answer(1)).total
    assert (total.share_ms, total.busy_share_ms, total.idle_share_ms) == (3_000, 1_000, 600)
    assert (total.unmeasured_share_ms, total.costs_micros) == (1_400, {"EUR": 14})
    assert total.energy_wh == 2.0


def test_only_the_charges_of_a_tenant_and_of_a_user_are_listed() -> None:
    facts = (charge("j1"), charge("j2", "b"), charge("j3", "b", "bob"))
    assert [row.charge.job_id for row in newest(*facts, tenant="b").rows] == ["j2", "j3"]
    assert [row.charge.job_id for row in newest(*facts, tenant="b", user="bob").rows] == ["j3"]


def test_csv_has_the_use_of_devices_beside_each_charge() -> None:
    rows = list(
        csv.DictReader(
            io.StringIO(
                as_csv(charges_shown(newest(charge("j1"), charge("j2", use=USE)).answer(1)))
            )
        )
    )
    assert [(row["job"], row["average_percent"]) for row in rows] == [("j2", "50"), ("j1", "")]


def test_what_a_driver_does_not_report_is_null() -> None:
    found = use_shown(DeviceUse(devices=1, sampled_ms=1))
    assert found is not None and (found.memory_bytes, found.energy_wh) == (None, None)
    assert use_shown(DeviceUse()) is None is use_shown(None)


def test_an_ask_is_read_back() -> None:
    ask = ChargesAsk(since_ns=1, until_ns=2, limit=3, tenant="t", user="u")
    assert m.decode_charges_ask(m.encode(ask)) == ask


def test_money_is_exact() -> None:
    assert [money(micros) for micros in (0, 1, 500_000, 2_500_000, 1_234_567)] == [
        "0.00",
        "0.000001",
        "0.50",
        "2.50",
        "1.234567",
    ]


def test_a_part_without_a_price_costs_nothing_in_any_currency() -> None:
    made = charge("j1", parts=(ChargePart("H100", 600, 1, 7, "EUR"), ChargePart("L4", 400)))
    (row,) = charges_shown(newest(made).answer(1)).charges
    assert (row.gpu, row.costs_micros) == ("H100, L4", {"EUR": 7})
