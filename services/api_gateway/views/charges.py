"""Charges as the API shows them: one row for each attempt that has ended, with its use of devices.

Pure. Tests: tests/unit/test_charges.py.
"""

import csv
import io
from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common import efficiency
from libs.common.facts import UsageCharged
from libs.common.facts.efficiency_facts import DeviceUse
from libs.common.messages.usage_messages import ChargeRow, ChargesAnswer
from services.api_gateway.times import rfc3339
from services.api_gateway.views.usage import MJ_PER_WH, SHARE_MS_PER_SECOND, UsageTotal, money


class UseShown(msgspec.Struct):
    """The use of GPUs as agents sampled it; null: the driver does not report it.

    `used` of the `devices` were busy at some time. `average_percent` and `peak_percent` are busy
    percentages. `memory_peak_bytes` is the most memory in use on one GPU, of `memory_bytes`.
    `shared`: another job had one of the GPUs at the same time, so the figures are those of both.
    """

    devices: int
    used: int
    measured_s: float
    average_percent: int
    peak_percent: int
    memory_peak_bytes: int | None
    memory_bytes: int | None
    energy_wh: float | None
    shared: bool
    simulated: bool
    hints: list[str]


class ChargeShown(msgspec.Struct):
    """The charge of one attempt, at its end, as in `UsageShown`.

    `gpus` is the number of GPUs that the attempt had, `gpu` their models. `costs_micros` are in
    millionths, by currency.
    """

    job: str
    attempt: int
    tenant: str
    user: str
    model: str
    gpus: int
    gpu: str
    began_at: str | None
    ended_at: str | None
    recorded_at: str | None
    share_ms: int
    gpu_seconds: float
    busy_share_ms: int
    idle_share_ms: int
    unmeasured_share_ms: int
    costs_micros: dict[str, int]
    cost: str
    use: UseShown | None


class ChargeList(msgspec.Struct):
    """The newest charges of a time, the newest first, and their sums.

    `left_out` counts older charges, which are not part of the sums.
    """

    charges: list[ChargeShown]
    total: UsageTotal
    left_out: int
    seq: int


# The columns of CSV: those of a charge with the use of devices in place of `use`.
USE_COLUMNS: Final = tuple(name for name in UseShown.__struct_fields__ if name != "hints")
COLUMNS: Final = tuple(
    name for name in ChargeShown.__struct_fields__ if name not in ("use", "costs_micros")
)


def use_shown(use: DeviceUse | None) -> UseShown | None:
    """Show the use of devices; null if there is no sample."""
    if use is None or not use.devices:
        return None
    return UseShown(
        devices=use.devices,
        used=use.used,
        measured_s=use.sampled_ms / 1_000,
        average_percent=efficiency.average_percent(use),
        peak_percent=use.peak_percent,
        memory_peak_bytes=use.memory_peak_bytes if use.memory_bytes else None,
        memory_bytes=use.memory_bytes or None,
        energy_wh=use.energy_mj / MJ_PER_WH if use.energy_mj >= 0 else None,
        shared=use.shared,
        simulated=use.simulated,
        hints=efficiency.hints(use),
    )


def charges_shown(found: ChargesAnswer) -> ChargeList:
    """Show the charges with their sums."""
    return ChargeList(
        charges=[_shown(row) for row in found.rows],
        total=_total(row.charge for row in found.rows),
        left_out=found.left_out,
        seq=found.seq,
    )


def as_csv(found: ChargeList) -> str:
    """Return the charges as CSV with a header."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow((*COLUMNS, *USE_COLUMNS))
    for row in found.charges:
        use = [getattr(row.use, name) for name in USE_COLUMNS] if row.use is not None else []
        blank = [""] * (len(USE_COLUMNS) - len(use))
        writer.writerow([*(getattr(row, name) for name in COLUMNS), *use, *blank])
    return out.getvalue()


def costs_of(charge: UsageCharged) -> dict[str, int]:
    """Return the cost of a charge in millionths, by currency."""
    costs: dict[str, int] = {}
    for part in charge.parts:
        if part.currency:
            costs[part.currency] = costs.get(part.currency, 0) + part.cost_micros
    return dict(sorted(costs.items()))


def _shown(row: ChargeRow) -> ChargeShown:
    charge, costs = row.charge, costs_of(row.charge)
    return ChargeShown(
        job=charge.job_id,
        attempt=charge.attempt,
        tenant=charge.tenant,
        user=charge.user,
        model=charge.job_id.rpartition("-")[0],
        gpus=charge.gpus,
        gpu=", ".join(dict.fromkeys(part.gpu for part in charge.parts)),
        began_at=rfc3339(charge.began_ns),
        ended_at=rfc3339(charge.ended_ns),
        recorded_at=rfc3339(row.at_ns),
        share_ms=charge.share_ms,
        gpu_seconds=charge.share_ms / SHARE_MS_PER_SECOND,
        busy_share_ms=charge.busy_share_ms,
        idle_share_ms=charge.idle_share_ms,
        unmeasured_share_ms=charge.share_ms - charge.busy_share_ms - charge.idle_share_ms,
        costs_micros=costs,
        cost=", ".join(f"{money(micros)} {currency}" for currency, micros in costs.items()),
        use=use_shown(charge.use),
    )


def _total(charges: Iterable[UsageCharged]) -> UsageTotal:
    total, energy_mj = UsageTotal(), 0
    for charge in charges:
        total.share_ms += charge.share_ms
        total.busy_share_ms += charge.busy_share_ms
        total.idle_share_ms += charge.idle_share_ms
        energy_mj += max(0, charge.use.energy_mj) if charge.use is not None else 0
        for currency, micros in costs_of(charge).items():
            total.costs_micros[currency] = total.costs_micros.get(currency, 0) + micros
    total.costs_micros = dict(sorted(total.costs_micros.items()))
    total.unmeasured_share_ms = total.share_ms - total.busy_share_ms - total.idle_share_ms
    total.energy_wh = energy_mj / MJ_PER_WH
    return total
