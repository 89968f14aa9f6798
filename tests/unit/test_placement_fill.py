"""Value of remainders for the workload mix in worked examples.

They also show where `fragmentation` places jobs.
"""

import pytest

from libs.common.facts import AnyFact
from libs.common.state.arrivals import FIRST, Arrival
from services.scheduler.placement import fill
from services.scheduler.placement.choose import choose
from services.scheduler.placement.fill import Fill, Fills, Usual
from services.scheduler.placement.place import DeviceFit
from services.scheduler.placement.strategies.fragmentation import after_fit
from tests.given import given, member, placed, registered, spec, waiting

HALVES = (Usual(1.0, 1, 50, 1),)  # Half a device and 2 CPUs each.
ENOUGH = -1


@pytest.mark.parametrize(
    ("lefts", "cpus_milli", "worth"),
    [
        ((100,), ENOUGH, 100),
        ((99,), ENOUGH, 50),
        ((49,), ENOUGH, 0),
        ((100,), 4_000, 100),
        ((100,), 2_000, 50),
        ((100,), 1_999, 0),
        ((100, 100), 6_000, 150),
        ((49,), 0, 0),
    ],
)
def test_a_remainder_is_worth_what_usual_jobs_fill_of_it_with_the_cpus_there_are(
    lefts: tuple[int, ...], cpus_milli: int, worth: int
) -> None:
    assert Fill(HALVES).value(lefts, cpus_milli) == pytest.approx(worth)


def test_cpus_that_are_too_few_for_all_devices_go_to_some_of_them() -> None:
    wide = Fill((Usual(1.0, 1, 100, 6),))
    assert wide.value((100,) * 4, 16_000) == pytest.approx(100)
    assert wide.value((30, 100, 100, 100, 100), 24_000) == pytest.approx(200)
    assert wide.value((), 16_000) == 0


def test_a_job_that_comes_seldom_fills_less_than_one_that_comes_often() -> None:
    seldom, often = (Fill((Usual(part, 1, 50, 0),)).value((50,), ENOUGH) for part in (0.01, 0.99))
    assert 0 < seldom < often <= 50


def test_values_that_were_forgotten_are_found_again_and_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Fill(HALVES)
    monkeypatch.setattr(fill, "KEPT_MAX", 1)
    forgetful = Fill(HALVES)
    asked = [((left,), cpus) for left in (50, 100, 50) for cpus in (ENOUGH, 2_000)]
    assert [forgetful.value(*each) for each in asked] == [kept.value(*each) for each in asked]
    assert len(forgetful._values) == 1


def test_rare_requests_are_not_in_the_workload_mix() -> None:
    often, hardly = Arrival(1, 50, 0, ()), Arrival(1, 100, 0, ())
    assert Fills(((often, 96), (hardly, 4)), {"A10": 100}, 0).of("A10")[0].usual == (
        Usual(1.0, 1, 50, 0),
    )
    assert len(Fills(((often, 94), (hardly, 6)), {"A10": 100}, 0).of("A10")[0].usual) == 2


def test_a_model_is_scarce_by_how_much_is_asked_of_it_alone_and_how_little_there_is() -> None:
    mix = ((Arrival(1, 100, 0, ()), 75), (Arrival(1, 100, 0, ("A10",)), 25))
    fills = Fills(mix, {"A10": 100, "H100": 300}, 0)
    assert (fills.of("A10")[1], fills.of("H100")[1]) == (1.0, 0.0)
    assert Fills(mix, {"A10": 200, "H100": 200}, 0).of("A10")[1] == 0.5
    assert Fills(mix, {"A10": 400}, 0).of("A10")[1] == 0.0, (
        "where every device is of that model, none is scarce"
    )
    assert fills.of("A10")[0].usual != fills.of("H100")[0].usual, (
        "who asks for A10 never runs on an H100"
    )


@pytest.mark.parametrize(
    ("fit", "after"),
    [
        (DeviceFit(), (30, 100, 100)),
        (DeviceFit((1,), 100, (100,)), (30, 100)),
        (DeviceFit((0,), 30, (30,)), (100, 100)),
        (DeviceFit((0,), 20, (30,)), (10, 100, 100)),
        (DeviceFit((1, 2), 40, (100, 100)), (30, 60, 60)),
    ],
)
def test_the_free_shares_that_a_device_fit_leaves(fit: DeviceFit, after: tuple[int, ...]) -> None:
    assert after_fit((30, 100, 100), fit) == after


def usual(**request: int) -> list[AnyFact]:
    """So many jobs that a mix is learnt of them."""
    return [fact for number in range(FIRST) for fact in waiting(f"usual{number}", **request)]


def test_a_job_without_gpus_leaves_cpus_for_jobs_with_gpus() -> None:
    nodes = [registered("a", cpus_milli=8_000), registered("c", gpus=0, cpus_milli=8_000)]
    assert (
        choose(given(nodes, usual(cpus_milli=2_000)).capacity, spec(gpus=0, cpus_milli=6_000), "")[
            0
        ][0]
        == "c"
    )
    assert (
        choose(given(nodes, usual()).capacity, spec(gpus=0, cpus_milli=6_000), "")[0][0] == "a"
    ), "no usual job needs them here"


def test_a_part_is_taken_of_an_open_device_when_whole_ones_are_what_is_usually_asked_for() -> None:
    opened = [*waiting("i", gpu_share=50), placed("i", member("b", 0, share=50))]
    state = given(registered("a", gpus=1), registered("b", gpus=1), opened, usual())
    assert choose(state.capacity, spec(gpu_share=50), "default")[0][0] == "b"


@pytest.mark.parametrize(
    ("usually", "requested", "node"),
    [
        (12_000, 16_000, "rich"),
        (12_000, 4_000, "poor"),
        (2_000, 4_000, "rich"),
    ],
    ids=["many CPUs", "few CPUs", "CPUs are plenty"],
)
def test_where_cpus_are_scarce_a_job_goes_where_as_many_per_gpu_are_left_as_it_requests(
    usually: int, requested: int, node: str
) -> None:
    nodes = [
        registered("rich", gpus=4, cpus_milli=64_000),
        registered("poor", gpus=4, cpus_milli=16_000),
    ]
    capacity = given(nodes, usual(cpus_milli=usually)).capacity
    assert choose(capacity, spec(cpus_milli=requested), "")[0][0] == node


def test_cpus_are_scarce_if_the_mix_requests_nearly_all_of_them_with_all_gpus() -> None:
    mix = ((Arrival(1, 50, 2_000, ()), 3), (Arrival(0, 100, 6_000, ()), 1))
    assert Fills(mix, {"A10": 300}, 26_600).cpus_are_scarce
    assert not Fills(mix, {"A10": 300}, 26_700).cpus_are_scarce
