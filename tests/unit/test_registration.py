"""An agent registers no more than every reader takes, and says what it left out."""

import pytest
from msgspec.structs import replace

from libs.common.bounds import COUNTS, bounded
from libs.common.facts import NodeRegistered
from libs.common.model import AttemptRef, Gpu, GpuId, JobId, NodeId
from services.node_agent.registration import CUT, within

WHOLE = NodeRegistered(node_id=NodeId("n1"), incarnation=1, address="10.0.0.1", gpus=())


def gpu(number: int, profiles: int = 0) -> Gpu:
    return Gpu(
        uuid=GpuId(f"g{number}"),
        index=number,
        vendor="nvidia",
        model="H100",
        memory_bytes=80 << 30,
        mig_profiles=tuple(map(str, range(profiles))),
    )


def of_size(name: str, count: int) -> NodeRegistered:
    """A registration with so many entries in one of its parts."""
    match name:
        case "gpus":
            return replace(WHOLE, gpus=tuple(map(gpu, range(count))))
        case "sockets":
            return replace(WHOLE, sockets=tuple(range(count)))
        case "absent":
            return replace(WHOLE, absent=tuple(GpuId(f"g{number}") for number in range(count)))
    return replace(WHOLE, **{name: {f"k{number}": "v" for number in range(count)}})


@pytest.mark.parametrize("name", CUT)
def test_a_registration_that_readers_would_ignore_is_cut_and_says_so(name: str) -> None:
    fact = of_size(name, COUNTS[name] + 3)
    assert bounded(fact) is None
    cut = within(fact)
    assert bounded(cut) == cut and len(getattr(cut, name)) == COUNTS[name]
    assert cut.left_out == (f"3 of {COUNTS[name] + 3} {name}: at most {COUNTS[name]} are taken",)


@pytest.mark.parametrize("name", CUT)
def test_a_registration_within_its_bounds_is_told_whole(name: str) -> None:
    fact = of_size(name, COUNTS[name])
    assert within(fact) is fact


def test_profiles_of_a_gpu_are_cut_too() -> None:
    fact = replace(WHOLE, gpus=(gpu(0), gpu(1, COUNTS["mig_profiles"] + 1)))
    cut = within(fact)
    assert bounded(fact) is None and bounded(cut) == cut
    assert cut.left_out == ("MIG profiles of 1 GPU: at most 256 are taken",)


def test_attempts_are_never_cut_because_one_that_is_not_named_counts_as_over() -> None:
    fact = replace(
        WHOLE, attempts=tuple(AttemptRef(JobId(f"j{number}"), 1) for number in range(300))
    )
    assert within(fact) is fact
