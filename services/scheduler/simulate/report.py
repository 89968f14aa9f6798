"""The report of a replay as JSON-able data, and the lines of its plots. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from libs.common.model import WHOLE_GPU, JobId
from services.scheduler.simulate.meter import Meter
from services.scheduler.simulate.trace import SECOND

QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
POINTS: Final = 400

Numbers = dict[str, float | int | None]


def report(meter: Meter) -> dict[str, Any]:
    """Return the report. Percentages are of the whole cluster; `while_queued` counts only the time
    in which some job waited.
    """
    began, ended = span(meter)
    requests = meter.requests
    return {
        "jobs": len(requests),
        "completed": len(meter.completions),
        "makespan_s": (ended - began) / SECOND,
        "queued_s": meter.queued_ns / SECOND,
        "utilisation_pct": {
            "while_queued": _part(meter.busy_queued, meter.queued_ns * meter.total),
            "whole_run": _part(meter.busy, (ended - began) * meter.total),
        },
        "stranded_pct": _part(meter.stranded_queued, meter.queued_ns * meter.total),
        "jain": round(meter.jain / meter.queued_ns, 4) if meter.queued_ns else None,
        "completion_s": spread(meter.completions.values()),
        "queue_delay_s": {
            "all": spread(meter.delays.values()),
            "by_size": _grouped(
                meter.delays, {job: size_of(requests[job].volume) for job in meter.delays}
            ),
            "by_tenant": _grouped(
                meter.delays, {job: (0, str(requests[job].tenant)) for job in meter.delays}
            ),
        },
    }


def span(meter: Meter) -> tuple[int, int]:
    """Return the first submission and the last end, or the time at which the run was cut off."""
    unfinished = meter.waiting or meter.used
    return meter.began_ns or 0, meter.now if unfinished else meter.ended_ns


def size_of(volume: int) -> tuple[int, str]:
    """Return a job's size class with its rank: GPUs up to each power of two."""
    if volume < WHOLE_GPU:
        return (-1, "below 1") if volume else (-2, "none")
    gpus = -(-volume // WHOLE_GPU)
    power = (gpus - 1).bit_length()
    low, high = (1 << power >> 1) + 1, 1 << power
    return power, str(high) if low >= high else f"{low}-{high}"


def spread(times: Iterable[int]) -> Numbers:
    """Return number, mean and quantiles in seconds."""
    ordered = sorted(times)
    if not ordered:
        return {"n": 0, "mean": None, **{name: None for name, _ in QUANTILES}}
    found: Numbers = {"n": len(ordered), "mean": round(sum(ordered) / len(ordered) / SECOND, 1)}
    return found | {name: round(_quantile(ordered, part) / SECOND, 1) for name, part in QUANTILES}


def utilisation(meter: Meter) -> list[tuple[float, float]]:
    """Return (seconds since the first submission, per cent): exact means over equal parts of the
    run.
    """
    began, ended = span(meter)
    step = max(1, -(-(ended - began) // POINTS))
    found = []
    index = used = 0
    for begin in range(began, ended, step):
        end, area, at = min(begin + step, ended), 0, begin
        while at < end:
            while index < len(meter.curve) and meter.curve[index][0] <= at:
                used = meter.curve[index][1]
                index += 1
            until = min(end, meter.curve[index][0]) if index < len(meter.curve) else end
            area += used * (until - at)
            at = until
        found.append(
            ((begin + end - 2 * began) / 2 / SECOND, 100 * area / ((end - begin) * meter.total))
        )
    return found


def completion(meter: Meter) -> list[tuple[float, float]]:
    """Return (seconds, per cent of the jobs that completed within them)."""
    ordered = sorted(meter.completions.values())
    parts = [number / POINTS for number in range(POINTS + 1)]
    return [(_quantile(ordered, part) / SECOND, 100 * part) for part in parts] if ordered else []


def _quantile(ordered: Sequence[int], part: float) -> int:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _grouped(
    delays: Mapping[JobId, int], group_of: Mapping[JobId, tuple[int, str]]
) -> dict[str, Numbers]:
    groups: dict[tuple[int, str], list[int]] = {}
    for job, delay in delays.items():
        groups.setdefault(group_of[job], []).append(delay)
    return {group[1]: spread(times) for group, times in sorted(groups.items())}


def _part(area: int, whole: int) -> float | None:
    return round(100 * area / whole, 2) if whole else None
