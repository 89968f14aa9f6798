"""docs/why.md shows what `muster why` really prints: each of its examples is the answer about such
a cluster, word for word.

`python -m tests.unit.test_why_page` prints them all, to be pasted.
"""

from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from typing import Final

import pytest
from msgspec.structs import replace

from libs.cli.verbs.why import show
from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, TenantId
from services.scheduler.explain.explain import explain
from tests.given import given, member, placed, registered, started, waiting
from tests.tidy import ROOT

PAGE: Final = ROOT / "docs/why.md"
HOUR_S: Final = 3_600


def nodes(count: int, gpus: int = 8, model: str = "H100", first: int = 1) -> list[AnyFact]:
    """node-1 and so on, with GPUs in two NUMA nodes."""
    found: list[AnyFact] = []
    for number in range(first, first + count):
        plain = registered(f"node-{number}", gpus, sockets=(0, 1), rack="r1")
        devices = tuple(
            replace(gpu, model=model, vendor="nvidia", numa=gpu.index * 2 // gpus)
            for gpu in plain.gpus
        )
        found.append(replace(plain, gpus=devices))
    return found


def busy(
    job: str, node: int, gpus: int, first: int = 0, hours: int = 0, **fields: object
) -> list[AnyFact]:
    """A job that runs there on so many GPUs."""
    name = f"node-{node}"
    request = waiting(job, gpus=gpus, time_limit_s=hours * HOUR_S, **fields)
    return [*request, placed(job, member(name, *range(first, first + gpus))), started(job, name)]


def lost(node: int) -> AnyFact:
    return f.NodeLost(node_id=registered(f"node-{node}").node_id, incarnation=1)


def impossible() -> list[AnyFact]:
    return [*nodes(4), *waiting("huge", gpus=9)]


def not_enough() -> list[AnyFact]:
    full = [
        fact
        for number in range(1, 4)
        for fact in busy(f"train{number}", number, 5, hours=2 * number)
    ]
    return [
        *nodes(4),
        *nodes(2, 4, "A100", first=5),
        *full,
        lost(4),
        *waiting("gang", nodes=2, gpus=4, model=("H100",)),
    ]


def behind() -> list[AnyFact]:
    return [
        *nodes(1),
        *busy("train", 1, 6, hours=3),
        *waiting("large", gpus=8, priority=60),
        *waiting("quick", gpus=1),
    ]


def over_limit() -> list[AnyFact]:
    limit = f.TenantSet(tenant=TenantId("vision"), max_gpu_share=800)
    return [
        limit,
        *nodes(2),
        *busy("train", 1, 6, hours=1, tenant="vision"),
        *waiting("more", gpus=4, tenant="vision"),
    ]


def fragmented() -> list[AnyFact]:
    full = [
        fact for number in range(1, 5) for fact in busy(f"part{number}", number, 6, hours=number)
    ]
    return [*nodes(4), *full, *waiting("wide", gpus=4)]


def across_numa() -> list[AnyFact]:
    return [
        *nodes(1),
        *busy("one", 1, 2),
        *busy("two", 1, 2, first=4),
        *waiting("near", gpus=4, allow_cross_numa=False),
    ]


def held() -> list[AnyFact]:
    return [*nodes(1), *waiting("later", hold=True)]


def dependent() -> list[AnyFact]:
    return [
        *nodes(1),
        *busy("train", 1, 8, hours=1),
        *waiting("evaluate", after=(("afterok", "train"),)),
    ]


def all_away() -> list[AnyFact]:
    fault = [
        f.GpuFaulted(registered("node-2").node_id, gpu.uuid, "offline", "draining")
        for gpu in registered("node-2", 8).gpus
    ]
    return [*nodes(2), lost(1), *fault, *waiting("alone", gpus=2)]


SCENES: Final[dict[str, Callable[[], list[AnyFact]]]] = {
    "huge": impossible,
    "gang": not_enough,
    "quick": behind,
    "more": over_limit,
    "wide": fragmented,
    "near": across_numa,
    "later": held,
    "evaluate": dependent,
    "alone": all_away,
}


def printed(job: str) -> str:
    out = StringIO()
    with redirect_stdout(out):
        show(explain(given(SCENES[job]()), JobId(job)))
    return f"$ muster why {job}\n{out.getvalue()}"


@pytest.mark.parametrize("job", SCENES)
def test_an_example_is_what_is_really_printed(job: str) -> None:
    assert f"```\n{printed(job)}```\n" in PAGE.read_text()


if __name__ == "__main__":
    for each in SCENES:
        print(f"```\n{printed(each)}```\n")
