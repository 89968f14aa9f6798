"""Counts of what queued jobs ask for; newer jobs weigh more.

Placement learns from them which devices are worth keeping free. Pure, and computed only from the
scheduler's own facts, whose order is the same for every reader. Decisions use `learnt`: it changes
only when the counts have become another mix, so that results derived from it last.
"""

from typing import Final, NamedTuple

import msgspec

from libs.common.model import JobSpec

# All counts are halved when their sum reaches this.
TOTAL_MAX: Final = 8_192
# The mix is learnt after 32, 64, ... 1024 arrivals, then compared after every 1024 more.
FIRST: Final = 32
EVERY: Final = 1_024
# A mix is different if this many hundredths of it differ.
DIFFERENT: Final = 10
KINDS_MAX: Final = 1_024


class Arrival(NamedTuple):
    """The resources that one kind of job requests per node. Empty `models` means any model."""

    gpus: int
    share: int
    cpus_milli: int
    models: tuple[str, ...]


class Arrivals(msgspec.Struct):
    """Counts by kind. A kind is a text (`kind_of`), because a snapshot holds the counts."""

    seen: int = 0
    total: int = 0
    counts: dict[str, int] = {}
    learnt: dict[str, int] = {}


def note(arrivals: Arrivals, spec: JobSpec) -> None:
    """Count a job that was queued.

    Jobs that ask for memory or MIG instances do not count: their share depends on the card.
    """
    if spec.gpu_memory_bytes or spec.mig_profile:
        return
    kind = kind_of(spec)
    arrivals.counts[kind] = arrivals.counts.get(kind, 0) + spec.nodes
    arrivals.seen += 1
    arrivals.total += spec.nodes
    if arrivals.total >= TOTAL_MAX or len(arrivals.counts) > KINDS_MAX:
        arrivals.counts = {name: count // 2 for name, count in arrivals.counts.items() if count > 1}
        arrivals.total = sum(arrivals.counts.values())
    if _is_due(arrivals.seen) and _has_shifted(arrivals.counts, arrivals.learnt):
        arrivals.learnt = dict(arrivals.counts)


def kind_of(spec: JobSpec) -> str:
    return "/".join(
        (str(spec.gpus), str(spec.gpu_share), str(spec.cpus_milli), "|".join(sorted(spec.model)))
    )


def learnt_of(counts: dict[str, int]) -> tuple[tuple[Arrival, int], ...]:
    """Return a mix as kinds with their counts, in a fixed order."""
    return tuple((_arrival(kind), count) for kind, count in sorted(counts.items()))


def _arrival(kind: str) -> Arrival:
    gpus, share, cpus, models = kind.split("/", 3)
    return Arrival(int(gpus), int(share), int(cpus), tuple(models.split("|")) if models else ())


def _is_due(seen: int) -> bool:
    return seen % EVERY == 0 or (FIRST <= seen < EVERY and seen & (seen - 1) == 0)


def _has_shifted(counts: dict[str, int], known: dict[str, int]) -> bool:
    total, before = sum(counts.values()), sum(known.values())
    if not total or not before:
        return total != before
    apart = sum(
        abs(counts.get(kind, 0) * before - known.get(kind, 0) * total)
        for kind in {**counts, **known}
    )
    return 100 * apart > 2 * DIFFERENT * total * before
