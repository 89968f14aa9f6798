"""The use of models and GPUs as the API shows it, and what it cost.

Pure. A tenant sees what it paid for and what its own users used. Of other tenants' users of its
models it sees the tenant alone. Of other tenants' models it sees neither replicas nor costs. All
sums are of integers, so the total is that of the lines.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from libs.common.life import job_life
from libs.common.messages.usage_messages import (
    FURTHER,
    PERIODS,
    SUMS,
    FleetLine,
    Name,
    UsageAnswer,
    UsageLine,
    merged,
    name_of,
)
from libs.common.state.cluster import Cluster

# What lines may be told apart by, besides the payer, the kind and the currency.
PARTS: Final = ("tenant", "user", "key", "model", *FURTHER)
SHARE_MS_PER_SECOND: Final = 100_000
MICROS: Final = 1_000_000
MJ_PER_WH: Final = 3_600_000
MS: Final = 1_000_000
LETTERS_MAX: Final = 64


class UsageShown(msgspec.Struct):
    """A line of the bill of `payer`.

    `kind` is job, requests (to a model), or idle (a model's replicas without a request).
    `gpu_seconds` is `share_ms`, which is exact, in whole GPUs and seconds: hundredths of a GPU
    times milliseconds, or 10 device microseconds. In `busy_share_ms` the devices computed, in
    `idle_share_ms` they did not, and `unmeasured_share_ms` is the rest. `cost_micros` is `cost` in
    millionths of the currency; both are of the share that has a price. `period` is the hour, day or
    month in UTC in which the use was recorded.
    """

    payer: str
    tenant: str
    user: str
    key: str
    model: str
    kind: str
    requests: int
    input_tokens: int
    output_tokens: int
    share_ms: int
    gpu_seconds: float
    gpu: str = ""
    job: str = ""
    period: str = ""
    charges: int = 0
    busy_share_ms: int = 0
    idle_share_ms: int = 0
    unmeasured_share_ms: int = 0
    energy_wh: float = 0.0
    cost_micros: int = 0
    cost: str = "0"
    currency: str = ""


class UsageTotal(msgspec.Struct):
    """The sums of all lines; `costs_micros` has one for each currency."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    share_ms: int = 0
    busy_share_ms: int = 0
    idle_share_ms: int = 0
    unmeasured_share_ms: int = 0
    energy_wh: float = 0.0
    costs_micros: dict[str, int] = {}


class FleetShown(msgspec.Struct):
    """The time of all GPUs of one model, in hundredths of a GPU times milliseconds.

    The parts add up to `capacity_share_ms`: allocated and busy, allocated and idle, allocated and
    not measured, allocated to attempts that still run, and not allocated.
    """

    gpu: str
    capacity_share_ms: int
    busy_share_ms: int
    idle_share_ms: int
    unmeasured_share_ms: int
    running_share_ms: int
    unallocated_share_ms: int


class UsageList(msgspec.Struct):
    """The lines of a time. Those of a payer add up to its part of `charged_share_ms`, and their
    costs to its part of `charged_micros`.

    `fleet` is for operators, and only where it was asked for.
    """

    usage: list[UsageShown]
    charged_share_ms: dict[str, int]
    seq: int
    charged_micros: dict[str, dict[str, int]] = {}
    total: UsageTotal = msgspec.field(default_factory=UsageTotal)
    fleet: list[FleetShown] = []


def usage_shown(
    found: UsageAnswer, by: Sequence[str], tenant: str | None, payer: str = ""
) -> UsageList:
    """Show the lines by these parts, as `tenant` may see them; None sees all.

    Only charges of `payer` are shown, if it is set.
    """
    payers = (tenant, payer or None)
    seen = found.lines if tenant is None else _seen(found.lines, tenant)
    lines = _with_one_currency(merged(seen, lambda line: _name(line, by)))
    charged = {each: share for each, share in found.charged.items() if _fits(each, payers)}
    costs = {each: cost for each, cost in found.costs.items() if _fits(each, payers) and cost}
    return UsageList(
        usage=sorted(map(_shown, lines), key=_order),
        charged_share_ms=charged,
        seq=found.seq,
        charged_micros=costs,
        total=_total(lines),
        fleet=[_fleet_shown(line) for line in found.fleet],
    )


def _fits(payer: str, payers: Iterable[str | None]) -> bool:
    return all(each in (None, payer) for each in payers)


def as_csv(found: UsageList) -> str:
    """Return the lines as CSV with a header."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(UsageShown.__struct_fields__)
    writer.writerows(msgspec.structs.astuple(line) for line in found.usage)
    return out.getvalue()


def money(micros: int) -> str:
    """Return millionths of a currency as an exact decimal number with at least two places."""
    whole, rest = divmod(micros, MICROS)
    places = f"{rest:06}".rstrip("0")
    return f"{whole}.{places:0<2}"


def with_running(
    fleet: Iterable[FleetLine], cluster: Cluster, since_ns: int, until_ns: int
) -> list[FleetLine]:
    """Add to the lines of the fleet what attempts use that are not charged yet, and what is left.

    A node's clock may differ from that of its scheduler. If more was allocated than nodes were
    there, the capacity is what was allocated.
    """
    lines = {line.gpu: line for line in fleet}
    for job in cluster.jobs.values():
        if job.state not in job_life.ON_NODES or not job.placed_ns:
            continue
        span_ms = max(0, until_ns - max(since_ns, job.placed_ns)) // MS
        for member in job.members.values():
            for hold in member.gpus:
                model = cluster.gpus[hold.uuid].gpu.model[:LETTERS_MAX]
                line = lines.setdefault(model, FleetLine(model))
                line.running_share_ms += hold.share * span_ms
    for line in lines.values():
        allocated = (
            line.busy_share_ms
            + line.idle_share_ms
            + line.unmeasured_share_ms
            + line.running_share_ms
        )
        line.capacity_share_ms = max(line.capacity_share_ms, allocated)
        line.unallocated_share_ms = line.capacity_share_ms - allocated
    return [lines[model] for model in sorted(lines)]


def periods_in(by: Sequence[str]) -> list[str]:
    """Return the periods among these parts."""
    return [part for part in by if part in PERIODS]


def _seen(lines: Iterable[UsageLine], tenant: str) -> list[UsageLine]:
    return [_seen_line(line, tenant) for line in lines if tenant in (line.payer, line.tenant)]


def _seen_line(line: UsageLine, tenant: str) -> UsageLine:
    """Return a line as the tenant may see it.

    A payer does not see which users its guests have, and a guest sees neither the replicas that
    answered it nor what they cost their owner.
    """
    if line.payer == line.tenant:
        return line
    if line.payer == tenant:
        return msgspec.structs.replace(line, user="", key="")
    return msgspec.structs.replace(line, job="", cost_micros=0, currency="")


def _name(line: UsageLine, by: Sequence[str]) -> Name:
    gone = [part for part in ("tenant", "user", "key", "model") if part not in by]
    return name_of(line)._replace(**dict.fromkeys(gone, ""))


def _with_one_currency(lines: Sequence[UsageLine]) -> list[UsageLine]:
    """Add a line without a currency to the line of the same name that has one.

    Requests are recorded without their cost. Lines in several currencies stay as they are.
    """
    currencies: dict[Name, set[str]] = {}
    for line in lines:
        if line.currency:
            currencies.setdefault(_bare(line), set()).add(line.currency)

    def name(line: UsageLine) -> Name:
        found = currencies.get(_bare(line), ())
        return _bare(line)._replace(currency=min(found)) if len(found) == 1 else name_of(line)

    return merged(lines, name)


def _bare(line: UsageLine) -> Name:
    return name_of(line)._replace(currency="")


def _shown(line: UsageLine) -> UsageShown:
    values = msgspec.structs.asdict(line)
    energy_mj = values.pop("energy_mj")
    return UsageShown(
        **values,
        gpu_seconds=line.share_ms / SHARE_MS_PER_SECOND,
        unmeasured_share_ms=line.share_ms - line.busy_share_ms - line.idle_share_ms,
        energy_wh=energy_mj / MJ_PER_WH,
        cost=money(line.cost_micros),
    )


def _order(line: UsageShown) -> tuple[object, ...]:
    names = (line.tenant, line.user, line.key, line.model, line.kind, line.gpu, line.job)
    return line.period, line.payer, -line.share_ms, *names, line.currency


def _total(lines: Iterable[UsageLine]) -> UsageTotal:
    sums = dict.fromkeys(SUMS, 0)
    costs: dict[str, int] = {}
    for line in lines:
        for name in SUMS:
            sums[name] += getattr(line, name)
        if line.currency:
            costs[line.currency] = costs.get(line.currency, 0) + line.cost_micros
    return UsageTotal(
        requests=sums["requests"],
        input_tokens=sums["input_tokens"],
        output_tokens=sums["output_tokens"],
        share_ms=sums["share_ms"],
        busy_share_ms=sums["busy_share_ms"],
        idle_share_ms=sums["idle_share_ms"],
        unmeasured_share_ms=sums["share_ms"] - sums["busy_share_ms"] - sums["idle_share_ms"],
        energy_wh=sums["energy_mj"] / MJ_PER_WH,
        costs_micros=dict(sorted(costs.items())),
    )


def _fleet_shown(line: FleetLine) -> FleetShown:
    return FleetShown(**msgspec.structs.asdict(line))
