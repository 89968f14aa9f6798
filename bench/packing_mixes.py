"""Share of a cluster that is allocated on synthetic lists of pods; otherwise like `packing.py`.

A score is chosen here, before it meets the published lists. A mix is drawn from its family with a
seed, so a family is many lists, not one. A family defines how many of the pods take parts of a
device, several devices or none, which nodes there are, and how much of the CPUs and the memory is
requested when all GPUs are: above 1, they run out first. Everything else is drawn.

The figures are means over the mixes of a family at 100 % and 130 % of the demand, and the mean
difference from FGD on the same mixes with its standard error. VARIANTS names families and SEEDS the
first and the last seed, for example 200-209.
"""

import os
import random
from math import sqrt
from statistics import mean, stdev
from typing import Final, NamedTuple

from bench.cluster import QUICK, say
from bench.packing import POLICIES, RULES, Trace, run
from libs.common.model import WHOLE_GPU
from services.scheduler.placement.resource_request import ResourceRequest

_FIRST, _LAST = map(
    int, (os.environ.get("SEEDS") or ("200-200" if QUICK else "200-209")).split("-")
)
SEEDS: Final = range(_FIRST, _LAST + 1)
# CPUs in thousandths, MiB, GPUs, model.
Machine = tuple[int, int, int, str]

GPUS: Final = 1_200
# Kinds of pods in each group of a mix. Their frequencies fall as 1/rank.
KINDS: Final = (3, 15)
SHARES: Final = (5, 10, 15, 20, 25, 30, 33, 40, 50, 60, 65, 75, 80, 90)
SEVERAL: Final = (2, 2, 4, 4, 8)
# Requested CPUs and memory per GPU vary by factors with this standard deviation of the logarithm.
SPREAD: Final = 0.7
CPUS_STEP_MILLI: Final = 500
MIB_STEP: Final = 256
MIB: Final = 1 << 20
# What an even node has for each GPU.
CPUS_PER_GPU_MILLI: Final = 12_000
MIB_PER_GPU: Final = 96 << 10
# A pod without GPUs requests the CPUs and memory of up to this many GPUs.
CPU_ONLY_MAX: Final = 1.5
MODELS: Final = ("A", "B", "C")


class Family(NamedTuple):
    """The numbers that define a family.

    `none`, `parts` and `several` are hundredths of all pods; the rest take one device. `cpus` and
    `memory` are the requests over what the cluster has, when all GPUs are requested. `uneven` nodes
    differ in GPUs, and up to fourfold in CPUs and memory per GPU. `named` are the hundredths of
    the kinds that name a GPU model.
    """

    none: int
    parts: int
    several: int
    cpus: float
    memory: float = 0.5
    uneven: bool = False
    named: int = 0


FAMILIES: Final = {
    "plain": Family(none=10, parts=40, several=5, cpus=0.7),
    "uneven": Family(none=12, parts=45, several=8, cpus=0.85, uneven=True),
    "cpu": Family(none=10, parts=40, several=5, cpus=1.15),
    "cpu_uneven": Family(none=10, parts=40, several=5, cpus=1.1, uneven=True),
    "cpu_none": Family(none=35, parts=35, several=5, cpus=1.05, uneven=True),
    "cpu_several": Family(none=5, parts=15, several=40, cpus=1.1, uneven=True),
    "cpu_parts": Family(none=5, parts=85, several=1, cpus=1.1, uneven=True),
    "memory": Family(none=10, parts=40, several=5, cpus=0.6, memory=1.1),
    "memory_uneven": Family(none=10, parts=40, several=5, cpus=0.6, memory=1.05, uneven=True),
    "cpu_130": Family(none=10, parts=40, several=1, cpus=1.3),
    "cpu_130_uneven": Family(none=10, parts=40, several=1, cpus=1.3, uneven=True),
    "cpu_160": Family(none=10, parts=40, several=1, cpus=1.6),
    "cpu_160_uneven": Family(none=10, parts=40, several=1, cpus=1.6, uneven=True),
    "cpu_220": Family(none=10, parts=40, several=1, cpus=2.2),
    "cpu_220_uneven": Family(none=10, parts=40, several=1, cpus=2.2, uneven=True),
    "cpu_parts_even": Family(none=5, parts=80, several=0, cpus=1.2),
    "cpu_whole": Family(none=5, parts=5, several=0, cpus=1.2),
    "cpu_whole_uneven": Family(none=5, parts=5, several=0, cpus=1.2, uneven=True),
    "cpu_memory": Family(none=10, parts=40, several=5, cpus=1.0, memory=1.0, uneven=True),
    "several": Family(none=5, parts=15, several=40, cpus=0.6),
    "parts": Family(none=5, parts=85, several=1, cpus=0.7),
    "named": Family(none=10, parts=40, several=5, cpus=0.9, uneven=True, named=30),
}


class Kind(NamedTuple):
    """A kind of pod. CPUs and memory are relative until the mix is scaled."""

    gpus: int
    share: int
    cpus: float
    memory: float
    model: tuple[str, ...]


def mix(name: str, seed: int) -> Trace:
    """Return the nodes of a mix, and its pods, which request all GPUs together."""
    family, dice = FAMILIES[name], random.Random(f"{name}/{seed}")
    nodes = _nodes(family, dice)
    kinds: list[Kind] = []
    chances: list[float] = []
    one = 100 - family.none - family.parts - family.several
    for group, part in enumerate((family.none, family.parts, one, family.several)):
        ranks = range(1, dice.randint(*KINDS) + 1)
        kinds += [_kind(family, group, dice) for _ in ranks]
        chances += [part / rank / sum(1 / each for each in ranks) for rank in ranks]
    drawn: list[Kind] = []
    wanted = WHOLE_GPU * sum(gpus for _, _, gpus, _ in nodes)
    while wanted > 0:
        drawn.append(dice.choices(kinds, chances)[0])
        wanted -= drawn[-1].gpus * drawn[-1].share
    return Trace(nodes, _scaled(family, nodes, drawn))


def _nodes(family: Family, dice: random.Random) -> list[Machine]:
    sizes = (8, 8, 4, 4, 2, 1) if family.uneven else (8, 4)
    shapes = [_shape(family, gpus, dice) for gpus in sizes]
    nodes: list[Machine] = []
    while sum(gpus for _, _, gpus, _ in nodes) < GPUS:
        nodes.append(dice.choice(shapes))
    return nodes


def _shape(family: Family, gpus: int, dice: random.Random) -> Machine:
    cpus, memory = (2 ** dice.uniform(-1, 1) if family.uneven else 1.0 for _ in range(2))
    return (
        int(CPUS_PER_GPU_MILLI * gpus * cpus),
        int(MIB_PER_GPU * gpus * memory),
        gpus,
        dice.choice(MODELS) if family.named else MODELS[0],
    )


def _kind(family: Family, group: int, dice: random.Random) -> Kind:
    gpus = (0, 1, 1, dice.choice(SEVERAL))[group]
    share = dice.choice(SHARES) if group == 1 else WHOLE_GPU
    size = gpus * share / WHOLE_GPU if gpus else dice.uniform(0, CPU_ONLY_MAX)
    cpus, memory = (size * dice.lognormvariate(0, SPREAD) for _ in range(2))
    named = gpus and dice.randrange(100) < family.named
    return Kind(gpus, share, cpus, memory, (dice.choice(MODELS),) if named else ())


def _scaled(family: Family, nodes: list[Machine], drawn: list[Kind]) -> list[ResourceRequest]:
    """Return the pods with their CPUs and memory, of which together as much is requested as the
    family defines.

    No pod requests more than the largest node has.
    """
    cpus = family.cpus * sum(node[0] for node in nodes) / sum(kind.cpus for kind in drawn)
    memory = family.memory * sum(node[1] for node in nodes) / sum(kind.memory for kind in drawn)
    most_cpus, most_memory = max(node[0] for node in nodes), max(node[1] for node in nodes)
    return [
        ResourceRequest(
            gpus=kind.gpus,
            share=kind.share,
            model=kind.model,
            cpus_milli=min(most_cpus, _rounded(kind.cpus * cpus, CPUS_STEP_MILLI)),
            memory_bytes=min(most_memory, _rounded(kind.memory * memory, MIB_STEP)) * MIB,
        )
        for kind in drawn
    ]


def _rounded(value: float, step: int) -> int:
    return max(1, round(value / step)) * step


def main() -> None:
    names = (os.environ.get("VARIANTS") or ",".join(FAMILIES)).split(",")
    policies = list(dict.fromkeys(("fgd", *POLICIES)))
    differences: dict[tuple[str, int], list[float]] = {}
    for name in names:
        traces = [mix(name, seed) for seed in SEEDS]
        runs = {
            policy: [
                run(trace, seed, RULES[policy]) for seed, trace in zip(SEEDS, traces, strict=True)
            ]
            for policy in policies
        }
        for policy in policies[1:]:
            for at, arrived in enumerate((100, 130)):
                over = [
                    mine[at] - fgd[at] for mine, fgd in zip(runs[policy], runs["fgd"], strict=True)
                ]
                differences.setdefault((policy, arrived), []).append(mean(over))
                say(
                    f"alloc_pct_{name}_{arrived}",
                    mean([each[at] for each in runs[policy]]),
                    "%",
                    len(over),
                    policy=policy,
                    over_fgd=round(mean(over), 2),
                    error=round(stdev(over) / sqrt(len(over)), 2) if len(over) > 1 else None,
                )
    for (policy, arrived), means in differences.items():
        say(f"over_fgd_{arrived}", mean(means), "points", len(means), policy=policy)


if __name__ == "__main__":
    main()
