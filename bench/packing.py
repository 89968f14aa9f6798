"""Share of a cluster that is allocated when jobs arrive until it is full: openb trace, FGD fill
protocol.

The pods of a list are shuffled with a seed and drawn until they ask for 130 % of the 6,212 GPUs.
Each pod is placed at once or fails for good. Nodes stand in a random order, which breaks ties.

The bench measures the scheduler's own `fragmentation` in its own rankings. FGD and best fit run
beside it by their published formulas (`packing_rules.py`) and must give the published rows, which
checks this harness. The lists are in `openb/` of the folder MUSTER_TRACES. VARIANTS names other
lists of the same form, POLICIES selects the policies, and CPUS=2 doubles the CPUs of each pod.
"""

import csv
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Final, NamedTuple

from bench.cluster import QUICK, say
from bench.packing_rules import bestfit, fgd
from libs.common.life.node_life import HEALTHY
from libs.common.model import WHOLE_GPU, Gpu, GpuId, JobId, NodeId
from libs.common.state.arrivals import Arrival
from libs.common.state.cluster import GpuView, Job, Node
from services.scheduler.placement.changes import Changes
from services.scheduler.placement.fill import Fills, WorkloadMix
from services.scheduler.placement.hardware import Hardware, key_of
from services.scheduler.placement.place import Place, host_serves
from services.scheduler.placement.ranking import Ranking
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.strategies import STRATEGIES, Score

VARIANTS: Final = tuple(
    (
        os.environ.get("VARIANTS")
        or ("default,gpushare40" if QUICK else "default,multigpu20,gpushare40,cpu050,gpuspec10")
    ).split(",")
)
POLICIES: Final = tuple(
    (
        os.environ.get("POLICIES") or ("fragmentation" if QUICK else "fragmentation,fgd,best_fit")
    ).split(",")
)
SEEDS: Final = range(42, 43) if QUICK else range(42, 52)
CPUS: Final = float(os.environ.get("CPUS") or 1)
ARRIVED_MAX: Final = 1.3
MILLI: Final = 10
MIB: Final = 1 << 20
# FGD's published allocation in per cent, when the demand reaches all GPUs and at the end: means of
# ten seeds (cluster-trace-gpu-v2023, ATC'23).
PUBLISHED: Final = {
    "default": (95.23, 95.39),
    "multigpu20": (95.53, 95.65),
    "gpushare40": (93.96, 94.15),
    "gpuspec10": (94.66, 94.95),
    "cpu050": (95.00, 95.21),
}


class Trace(NamedTuple):
    """A trace of nodes and pods.

    `nodes` are (CPUs in thousandths, MiB, GPUs, model). A pod is its request; a variant is a list
    of pods.
    """

    nodes: list[tuple[int, int, int, str]]
    pods: list[ResourceRequest]


def read(folder: Path, variant: str) -> Trace:
    with (folder / "openb_node_list_gpu_node.csv").open() as file:
        nodes = [
            (int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
            for row in csv.DictReader(file)
        ]
    with (folder / f"openb_pod_list_{variant}.csv").open() as file:
        cpus_max = max(cpus for cpus, _, _, _ in nodes)
        return Trace(nodes, [_pod(row, cpus_max) for row in csv.DictReader(file)])


def _pod(row: dict[str, str], cpus_max: int) -> ResourceRequest:
    gpus = int(row["num_gpu"])
    models = tuple(sorted(filter(None, (row.get("gpu_spec") or "").split("|"))))
    share = int(row["gpu_milli"]) // MILLI if gpus else WHOLE_GPU
    memory = int(row["memory_mib"]) * MIB
    cpus = min(cpus_max, int(int(row["cpu_milli"]) * CPUS))
    return ResourceRequest(
        gpus=gpus, share=share, model=models, cpus_milli=cpus, memory_bytes=memory
    )


def arrivals(trace: Trace) -> tuple[tuple[Arrival, int], ...]:
    """Return the mix of the whole list, as the protocol gives it to every policy.

    In a live cluster it is learnt (`libs/common/state/arrivals.py`).
    """
    counts = Counter(
        Arrival(pod.gpus, pod.share if pod.gpus else 0, pod.cpus_milli, pod.model)
        for pod in trace.pods
    )
    return tuple(counts.items())


def places_of(trace: Trace, dice: random.Random) -> list[Place | None]:
    """Return the nodes in a random order."""
    built: dict[object, Hardware] = {}
    found: list[Place | None] = []
    for index, (cpus, memory, gpus, model) in enumerate(dice.sample(trace.nodes, len(trace.nodes))):
        devices = [
            Gpu(
                uuid=GpuId(f"{index}-{gpu}"), index=gpu, vendor="openb", model=model, memory_bytes=1
            )
            for gpu in range(gpus)
        ]
        hardware = built.setdefault(key_of(devices, ()), Hardware(devices, ()))
        node = Node(NodeId(f"n{index}"), HEALTHY, cpus_milli=cpus, memory_bytes=memory * MIB)
        jobs: dict[JobId, Job] = {}
        place = Place(
            index,
            node,
            views=[GpuView(node.node_id, gpu) for gpu in devices],
            hardware=hardware,
            jobs=jobs,
        )
        place.whole, place.cpus_free, place.memory_free = (1 << gpus) - 1, cpus, memory * MIB
        place.widen()
        found.append(place)
    return found


def pods_of(trace: Trace, dice: random.Random, total: int) -> list[ResourceRequest]:
    """The whole list shuffled, then draws from it up to the target; of a list that is too long some
    are left out.
    """
    pods = dice.sample(trace.pods, len(trace.pods))
    asked = sum(volume(pod) for pod in pods)
    target = ARRIVED_MAX * total
    while asked > target:
        asked -= volume(pods.pop(dice.randrange(len(pods))))
    while True:
        pod = dice.choice(trace.pods)
        if asked + (pod.share if pod.gpus else 0) > target:
            return pods
        asked += volume(pod)
        pods.append(pod)


def volume(pod: ResourceRequest) -> int:
    """Return the hundredths of a GPU that the pod requests."""
    return pod.gpus * pod.share


def fill(
    places: list[Place | None], pods: list[ResourceRequest], score: Score, mix: WorkloadMix
) -> Iterator[tuple[int, int]]:
    """After each pod: what was asked for, and what is allocated, in hundredths of a GPU."""
    rankings: dict[ResourceRequest, Ranking] = {}
    changes = Changes(places)
    asked = allocated = 0
    for pod in pods:
        request = pod.ranked
        ranking = rankings.get(request) or rankings.setdefault(
            request, Ranking(request, "", score, mix)
        )
        ranking.bring_up(places, changes)
        asked += volume(pod)
        for index in ranking.in_order():
            place = places[index]
            assert place is not None
            if not host_serves(place, pod):
                continue
            place.give(place.taken(ranking.best[index][1], pod), pod, "")
            assert (
                place.cpus_free >= 0
                and place.memory_free >= 0
                and all(part.free > 0 for part in place.parts.values())
            )
            changes.note([index])
            allocated += volume(pod)
            break
        yield asked, allocated


def run(
    trace: Trace, seed: int, policy: Callable[[Trace], tuple[Score, WorkloadMix]]
) -> tuple[float, float]:
    """Allocation in per cent at 100 % (the mean over the events that round to it) and
    at the end.
    """
    dice = random.Random(seed)
    total = WHOLE_GPU * sum(gpus for _, _, gpus, _ in trace.nodes)
    pods = pods_of(trace, dice, total)
    places = places_of(trace, dice)
    score, mix = policy(trace)
    at_full: list[float] = []
    shown = 0.0
    for asked, allocated in fill(places, pods, score, mix):
        assert allocated <= total
        shown = round(100 * allocated / total, 2)
        if round(100 * asked / total) == 100:
            at_full.append(shown)
    return mean(at_full), shown


def ours(trace: Trace) -> tuple[Score, WorkloadMix]:
    capacity: Counter[str] = Counter()
    for _, _, gpus, model in trace.nodes:
        capacity[model] += gpus * WHOLE_GPU
    cpus = sum(node[0] for node in trace.nodes)
    fills = Fills(arrivals(trace), dict(capacity), cpus)
    return STRATEGIES["fragmentation"], WorkloadMix(fills)


RULES: Final = {
    "fragmentation": ours,
    "fgd": lambda trace: (fgd(arrivals(trace)), WorkloadMix()),
    "best_fit": lambda trace: (bestfit, WorkloadMix()),
}


def main() -> None:
    folder = Path(os.environ.get("MUSTER_TRACES", "../shared/traces")) / "openb"
    if not folder.is_dir():
        sys.exit(
            f"there is no {folder}: set MUSTER_TRACES to the folder that holds openb/ "
            "(cluster-trace-gpu-v2023)"
        )
    for variant in VARIANTS:
        trace = read(folder, variant)
        known = PUBLISHED.get(variant) if CPUS == 1 else None
        for policy in POLICIES:
            runs = [run(trace, seed, RULES[policy]) for seed in SEEDS]
            for place, arrived in enumerate((100, 130)):
                found = [each[place] for each in runs]
                setting = {
                    "policy": policy,
                    "sd": round(stdev(found), 3) if len(found) > 1 else 0,
                    "published_fgd": known and known[place],
                }
                suffix = "" if policy == "fragmentation" else f"_{policy}"
                say(
                    f"alloc_pct_{variant}_{arrived}{suffix}",
                    mean(found),
                    "%",
                    len(found),
                    **setting,
                )


if __name__ == "__main__":
    main()
