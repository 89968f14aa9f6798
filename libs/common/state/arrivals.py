"""What jobs usually ask for: a count of what was queued, newer jobs weigh more.

Placement learns from it what is worth keeping free.

Pure, part of the fold, and only of the scheduler's own facts, whose order is the same for every
reader. `learnt` is what decisions go by: it changes seldom, when the counts have become another
mix, so that what was worked out from it lasts.
"""

from typing import Final, NamedTuple

import msgspec

from libs.common.model import JobSpec

# All counts are halved when they come to so many together.
TOTAL_MAX: Final = 8_192
# The mix is learnt after 32, 64, ... 1024 arrivals, then looked at after each 1024 more.
FIRST: Final = 32
EVERY: Final = 1_024
# It is another mix when so many hundredths of it differ.
DIFFERENT: Final = 10
KINDS_MAX: Final = 1_024


class Arrival(NamedTuple):
    """A kind of job, per node; `models` empty: any."""

    gpus: int
    share: int
    cpus_milli: int
    models: tuple[str, ...]


class Arrivals(msgspec.Struct):
    """Counts by kind, as text (`kind_of`), for a snapshot holds them."""

    seen: int = 0
    total: int = 0
    counts: dict[str, int] = {}
    learnt: dict[str, int] = {}


def note(arrivals: Arrivals, spec: JobSpec) -> None:
    """A job was queued.

    What asks for memory or for MIG instances is no part of the mix: its share is the card's to say.
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
    if _is_due(arrivals.seen) and _differs(arrivals.counts, arrivals.learnt):
        arrivals.learnt = dict(arrivals.counts)


def kind_of(spec: JobSpec) -> str:
    return "/".join(
        (str(spec.gpus), str(spec.gpu_share), str(spec.cpus_milli), "|".join(sorted(spec.model)))
    )


def learnt_of(counts: dict[str, int]) -> tuple[tuple[Arrival, int], ...]:
    """A mix by kinds, in an order of its own."""
    return tuple((_arrival(kind), count) for kind, count in sorted(counts.items()))


def _arrival(kind: str) -> Arrival:
    gpus, share, cpus, models = kind.split("/", 3)
    return Arrival(int(gpus), int(share), int(cpus), tuple(models.split("|")) if models else ())


def _is_due(seen: int) -> bool:
    return seen % EVERY == 0 or (FIRST <= seen < EVERY and seen & (seen - 1) == 0)


def _differs(counts: dict[str, int], known: dict[str, int]) -> bool:
    total, before = sum(counts.values()), sum(known.values())
    if not total or not before:
        return total != before
    apart = sum(
        abs(counts.get(kind, 0) * before - known.get(kind, 0) * total)
        for kind in {**counts, **known}
    )
    return 100 * apart > 2 * DIFFERENT * total * before
