"""Queueing time and utilisation in virtual time: Muri's slices 1 and 3 on 8 x 8 GPUs, Philly on 512
and 640.

Each figure's setting names one of two protocols.

`resort` is the protocol of the published figures (SIGCOMM'22). At every arrival and end it sorts
and places all jobs again, first fit, with free migration. A second run charges 30 s for each
restart or move, which no published figure does. An independent program gave 1,333,917 s for SRTF
and 952,245 s for SRSF on trace 1, and 180,116 s and 172,684 s on trace 3. These values check the
harness. The levels of `las` suit trace 3: with a factor of 16 instead of 10 its mean there is
401,000 s, behind Tiresias-L (trace 1 hardly changes).

`live` uses the scheduler's own rules. It preempts no job, and it knows run times only where the
setting names time limits. MUSTER_TRACES names the folder of the traces.
"""

import os
import sys
from pathlib import Path
from typing import Any, Final

from bench.cluster import QUICK, say
from services.scheduler.policies import POLICIES
from services.scheduler.simulate.__main__ import TRACES, Ask, run
from services.scheduler.simulate.report import report
from services.scheduler.simulate.resort import ORDERS

MURI: Final = (1, 3)
OVERHEAD_S: Final = 30
DAYS: Final = 86_400
# Users ask for more time than they need.
LIMITS: Final = 2.0
QUICK_DAYS: Final = 25
# Published mean completion times in seconds on traces 1 and 3 (Rivendile/Muri), by the order with
# the same knowledge.
PUBLISHED: Final = {
    "srtf": {"SRTF": (1_370_603, 193_082)},
    "srsf": {"SRSF": (980_141, 185_022), "Muri-S (interleaves)": (867_706, 85_503)},
    "las": {
        "Tiresias-L": (3_330_371, 347_213),
        "Muri-L (interleaves)": (1_072_010, 88_687),
        "AntMan": (5_476_391, 305_454),
    },
}


def measure(name: str, ask: Ask, **setting: Any) -> dict[str, Any]:
    meter, counts = run(ask, ask.orders[0])
    found = report(meter)
    assert found["completed"] + counts["rejected"] == found["jobs"] or ask.until_s, "every job ends"
    setting |= {
        "order": ask.orders[0],
        "place": ask.place,
        "protocol": "resort" if ask.preempt else "live",
        "overhead_s": ask.overhead_s,
    }
    jobs = found["completed"]
    say(f"{name}_jct_mean_s", found["completion_s"]["mean"], "s", jobs, **setting)
    say(f"{name}_jct_p99_s", found["completion_s"]["p99"], "s", jobs)
    say(f"{name}_makespan_s", found["makespan_s"], "s", jobs)
    say(
        f"{name}_util_queued_pct",
        found["utilisation_pct"]["while_queued"],
        "%",
        jobs,
        hours_queued=round(found["queued_s"] / 3_600),
    )
    say(f"{name}_util_run_pct", found["utilisation_pct"]["whole_run"], "%", jobs)
    return found | counts


def muri(trace: int) -> None:
    file = f"muri/trace{trace}_jobs.csv"
    place = MURI.index(trace)
    for order in ORDERS:
        published = {name: found[place] for name, found in PUBLISHED.get(order, {}).items()}
        for overhead in (0,) if QUICK else (0, OVERHEAD_S):
            ask = Ask(
                trace=file,
                nodes="8x8",
                orders=[order],
                place="first_fit",
                preempt=True,
                overhead_s=overhead,
            )
            name = f"muri{trace}_{order}" + ("_overhead" if overhead else "")
            found = measure(name, ask, published_jct_mean_s=published)
            say(
                f"{name}_preemptions",
                found["preemptions"],
                "preemptions",
                found["jobs"],
                migrations=found["migrations"],
            )
    for order in POLICIES:
        measure(f"muri{trace}_live_{order}", Ask(trace=file, nodes="8x8", orders=[order]))


def philly(nodes: int, order: str, backfill: bool, limits: float = 0.0) -> None:
    until_s = QUICK_DAYS * DAYS if QUICK else 0
    ask = Ask(
        trace="philly/jobs.csv",
        nodes=f"{nodes}x8",
        orders=[order],
        until_s=until_s,
        backfill=backfill,
        limits=limits,
    )
    variant = f"{'_backfill' if backfill else ''}{'_limits' if limits else ''}"
    name = f"philly{nodes * 8}_live_{order}{variant}"
    found = measure(
        name, ask, time_limits=f"{limits:g} times what a job takes" if limits else "none"
    )
    say(
        f"{name}_jain",
        found["jain"],
        "index",
        found["jobs"],
        of="tenants' parts of what they may have, while a queue exists",
    )
    for kind in ("by_size", "by_tenant"):
        for group, delay in found["queue_delay_s"][kind].items():
            say(
                f"{name}_delay_p50_s",
                delay["p50"],
                "s",
                delay["n"],
                p90=delay["p90"],
                p99=delay["p99"],
                **{kind[3:]: group},
            )


def main() -> None:
    folder = Path(os.environ.setdefault(TRACES, "../shared/traces"))
    if not (folder / "muri").is_dir() or not (folder / "philly").is_dir():
        sys.exit(f"there is no {folder}/muri or philly: set {TRACES} to the folder that holds both")
    for trace in MURI:
        muri(trace)
    for nodes in (64,) if QUICK else (64, 80):
        # All jobs of these traces have the same priority, so that order is fifo here.
        for order in POLICIES:
            if order != "priority":
                philly(nodes, order, backfill=order != "fifo")
        philly(nodes, "fifo", backfill=True)
        philly(nodes, "fifo", backfill=True, limits=LIMITS)


if __name__ == "__main__":
    main()
