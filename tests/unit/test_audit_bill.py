"""The bill of a time: lines by key and model that add up to what was charged."""

from libs.common import facts as f
from libs.common import reading, subjects
from libs.common.facts import ChargeLine, ModelUse
from libs.common.messages.usage_messages import FleetLine, UsageAnswer, UsageLine
from libs.common.model import JobId, TenantId
from services.api_gateway.views.usage import as_csv, periods_in, usage_shown
from services.audit.export import bill
from services.audit.export.bill import Bill

A, B = TenantId("a"), TenantId("b")


def use(tenant: TenantId, user: str, key: str, model: str = "m", **counts: int) -> ModelUse:
    return ModelUse(
        tenant=tenant,
        user=user,
        key_id=key,
        owner=A,
        model=model,
        job_id=JobId(f"{model}-1"),
        attempt=1,
        **counts,
    )


def billed() -> Bill:
    made = Bill()
    first = use(A, "ada", "k1", requests=1, input_tokens=10, output_tokens=5)
    second = use(B, "bob", "k2", requests=2, input_tokens=20, output_tokens=7)
    made.add(f.ModelUsed(uses=(first, second)))
    made.add(f.ModelUsed(uses=(first,)))
    lines = (ChargeLine(B, "bob", "k2", 300), ChargeLine(A, "ada", "k1", 200))
    made.add(
        f.UsageCharged(
            job_id=JobId("m-1"), attempt=1, tenant=A, share_ms=1_000, user="ada", lines=lines
        )
    )
    made.add(f.UsageCharged(job_id=JobId("m-2"), attempt=1, tenant=A, share_ms=50))
    made.add(f.UsageCharged(job_id=JobId("j1"), attempt=1, tenant=B, share_ms=70, user="bob"))
    made.add(f.ModelUndeployed(name="m"))
    return made


def test_charges_that_a_node_forged_are_on_no_bill() -> None:
    forged = f.UsageCharged(job_id=JobId("j1"), attempt=1, tenant=A, share_ms=1 << 62)
    uses = f.ModelUsed(uses=(use(A, "ada", "k1", requests=1),))
    found = Bill()
    for subject in (subjects.node("n1"), subjects.gateway("a"), subjects.SCHEDULER, subjects.QUOTA):
        commit = f.Commit(
            version=f.VERSION,
            min_reader=f.VERSION,
            writer=subject,
            number=1,
            epoch=1,
            at_ns=1,
            seen=0,
            facts=(uses,) if subject == subjects.QUOTA else (forged,),
        )
        for fact in reading.read_alone(subject, f.encode(commit)).facts:
            found.add(fact)
    assert found.answer(1) == UsageAnswer([], {}, 1)


def test_lines_add_up_to_the_charge_with_an_idle_line() -> None:
    found = billed().answer(9)
    assert found == UsageAnswer(
        [
            UsageLine("a", "a", "", "", "m", "idle", share_ms=550, charges=2),
            UsageLine("a", "a", "ada", "k1", "m", "requests", 2, 20, 10, 200, charges=1),
            UsageLine("a", "b", "bob", "k2", "m", "requests", 2, 20, 7, 300, charges=1),
            UsageLine("b", "b", "bob", "", "", "job", share_ms=70, charges=1),
        ],
        {"a": 1_050, "b": 70},
        9,
    )
    for payer, charged in found.charged.items():
        assert sum(line.share_ms for line in found.lines if line.payer == payer) == charged


def test_a_charge_of_several_parts_counts_once_in_a_line() -> None:
    parts = (
        f.ChargePart("H100", 60, 100, 6, "EUR"),
        f.ChargePart("H100", 40, 200, 8, "EUR"),
        f.ChargePart("A100", 10, 100, 1, "USD"),
    )
    made = Bill()
    made.add(f.UsageCharged(job_id=JobId("j1"), attempt=1, tenant=A, share_ms=110, parts=parts))
    found = made.answer(1).lines
    assert [(line.share_ms, line.charges) for line in found] == [(100, 1), (10, 1)]


def test_too_many_lines_are_merged_by_user_and_then_by_tenant() -> None:
    keys, users = Bill(), Bill()
    for number in range(bill.LINES_MAX + 1):
        keys.add(f.ModelUsed(uses=(use(A, "ada", f"k{number}", requests=1),)))
        users.add(f.ModelUsed(uses=(use(A, f"u{number}", f"k{number}", requests=1),)))
    (line,) = keys.answer(1).lines
    assert (line.user, line.key, line.requests) == ("ada", "", bill.LINES_MAX + 1)
    (line,) = users.answer(1).lines
    assert (line.tenant, line.user, line.requests) == ("a", "", bill.LINES_MAX + 1)


def test_an_operator_sees_all_by_the_parts_that_it_asked_for() -> None:
    shown = usage_shown(billed().answer(9), ("model",), None)
    assert [(each.payer, each.tenant, each.model, each.kind) for each in shown.usage] == [
        ("a", "", "m", "idle"),
        ("a", "", "m", "requests"),
        ("b", "", "", "job"),
    ]
    assert [each.share_ms for each in shown.usage] == [550, 500, 70]
    assert [each.gpu_seconds for each in shown.usage] == [0.0055, 0.005, 0.0007]
    assert shown.charged_share_ms == {"a": 1_050, "b": 70}


def test_an_owner_sees_that_a_guest_used_its_model_but_not_which_user() -> None:
    shown = usage_shown(billed().answer(9), ("tenant", "user", "key", "model"), "a")
    guests = [each for each in shown.usage if each.tenant == "b"]
    assert [(each.user, each.key, each.share_ms) for each in guests] == [("", "", 300)]
    assert sum(each.share_ms for each in shown.usage) == 1_050 == shown.charged_share_ms["a"]


def test_a_guest_sees_its_own_use_of_a_shared_model_and_nothing_of_the_owner() -> None:
    shown = usage_shown(billed().answer(9), ("tenant", "user", "key", "model"), "b")
    assert [(each.payer, each.user, each.key, each.share_ms) for each in shown.usage] == [
        ("a", "bob", "k2", 300),
        ("b", "bob", "", 70),
    ]
    assert shown.charged_share_ms == {"b": 70}


def test_a_guest_sees_neither_the_replica_nor_what_it_cost_its_owner() -> None:
    made = priced("EUR", made=Bill("", ("gpu", "job")))
    by = ("tenant", "user", "model", "gpu", "job")
    guest, owner = (usage_shown(made.answer(9), by, tenant) for tenant in ("b", "a"))
    assert {(each.job, each.cost_micros, each.currency) for each in guest.usage} == {("", 0, "")}
    assert guest.total.costs_micros == {}
    used = [each for each in owner.usage if each.tenant == "b" and each.share_ms]
    assert [(each.job, each.gpu, each.cost_micros, each.currency) for each in used] == [
        ("m-3", "L4", 5, "EUR")
    ]
    assert usage_shown(made.answer(9), by, None).total.costs_micros == {"EUR": 5}


def priced(*currencies: str, made: Bill | None = None) -> Bill:
    made = made or billed()
    for number, currency in enumerate(currencies):
        part = f.ChargePart(gpu="L4", share_ms=100, cost_micros=5, currency=currency)
        lines = (ChargeLine(B, "bob", "k2", 100),)
        made.add(
            f.UsageCharged(
                job_id=JobId(f"m-{number + 3}"),
                attempt=1,
                tenant=A,
                share_ms=100,
                lines=lines,
                parts=(part,),
            )
        )
    return made


def test_requests_and_their_cost_are_one_line_if_it_has_one_currency() -> None:
    shown = usage_shown(priced("EUR").answer(9), ("tenant", "user", "model"), None)
    (line,) = [each for each in shown.usage if each.user == "bob" and each.kind == "requests"]
    assert (line.requests, line.share_ms, line.cost, line.currency) == (2, 400, "0.000005", "EUR")


def test_lines_in_several_currencies_are_not_merged_and_the_total_sorts_them() -> None:
    shown = usage_shown(priced("USD", "EUR").answer(9), ("tenant", "user", "model"), None)
    found = [each for each in shown.usage if each.user == "bob" and each.kind == "requests"]
    assert [(each.currency, each.requests) for each in found] == [("", 2), ("EUR", 0), ("USD", 0)]
    assert list(shown.total.costs_micros) == ["EUR", "USD"]


def test_csv_has_the_exact_numbers() -> None:
    text = as_csv(usage_shown(billed().answer(9), ("model",), "b"))
    assert text.splitlines() == [
        "payer,tenant,user,key,model,kind,requests,input_tokens,output_tokens,share_ms,gpu_seconds,"
        "gpu,job,period,charges,busy_share_ms,idle_share_ms,unmeasured_share_ms,energy_wh,"
        "cost_micros,cost,currency",
        "a,,,,m,requests,2,20,7,300,0.003,,,,1,0,0,300,0.0,0,0.00,",
        "b,,,,,job,0,0,0,70,0.0007,,,,1,0,0,70,0.0,0,0.00,",
    ]


def test_the_bill_of_one_tenant_has_what_it_pays_and_what_it_used_of_others() -> None:
    made = Bill("b")
    made.lines, made.charged = billed().lines, billed().charged
    assert [(line.payer, line.tenant) for line in made.answer(9).lines] == [("a", "b"), ("b", "b")]


def test_the_bill_of_one_user_has_its_lines_only() -> None:
    def lines(tenant: str, user: str) -> list[tuple[str, str, str]]:
        made = Bill(tenant, user=user)
        made.lines, made.charged = billed().lines, billed().charged
        found = made.answer(9)
        assert (found.charged, found.costs) == ({}, {})
        return [(line.payer, line.tenant, line.user) for line in found.lines]

    assert lines("", "bob") == [("a", "b", "bob"), ("b", "b", "bob")]
    assert lines("b", "bob") == lines("", "bob")
    assert lines("a", "bob") == []  # an owner does not learn which users its guests have


def test_charges_of_the_wanted_payer_are_shown_alone() -> None:
    found = billed().answer(9)
    assert usage_shown(found, (), None, "b").charged_share_ms == {"b": 70}
    assert usage_shown(found, (), "a", "b").charged_share_ms == {}


def test_lines_of_other_tenants_do_not_coarsen_those_of_one() -> None:
    made = Bill("b")
    for number in range(bill.LINES_MAX + 1):
        made.add(f.ModelUsed(uses=(use(A, f"u{number}", "k", requests=1),)))
    made.add(f.ModelUsed(uses=(use(B, "bob", "k2", requests=1),)))
    assert [(line.user, line.key) for line in made.answer(9).lines] == [("bob", "k2")]


def test_the_time_of_all_gpus_is_shown_as_it_was_counted() -> None:
    line = FleetLine("H100", 60, 10, 20, 5, 15, 10)
    (shown,) = usage_shown(UsageAnswer([], {}, 9, fleet=[line]), (), None).fleet
    assert (shown.gpu, shown.capacity_share_ms, shown.running_share_ms) == ("H100", 60, 15)
    parts = (shown.busy_share_ms, shown.idle_share_ms, shown.unmeasured_share_ms)
    assert sum(parts) + shown.running_share_ms + shown.unallocated_share_ms == 60


def test_periods_are_told_from_the_other_parts_that_were_asked_for() -> None:
    assert periods_in(("tenant", "day", "gpu", "hour")) == ["day", "hour"]
