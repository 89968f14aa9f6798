"""How what a device is told is said: read as it is recorded, refused with what it takes."""

import pytest
from msgspec.structs import replace

from libs.common.devices import device_controls as c
from libs.common.errors import Refused
from libs.common.model import Gpu, GpuId

BARE = Gpu(uuid=GpuId("g"), index=0, vendor="nvidia", model="H100", memory_bytes=1)
GPU = replace(BARE, power_mw=(199_500, 700_000), clocks_mhz=(210, 1980))


@pytest.mark.parametrize(
    ("control", "value", "read"),
    [
        ("power", "300", "300"),
        ("power", "700", "700"),
        ("power", "default", ""),
        ("clocks", "1200-1500", "1200-1500"),
        ("clocks", "1500", "1500-1500"),
        ("clocks", "default", ""),
        ("persistence", "on", "on"),
        ("compute-mode", "exclusive_process", "exclusive_process"),
        ("compute-mode", "default", ""),
        ("ecc", "off", "off"),
        ("reset", "", ""),
    ],
)
def test_a_value_is_read_as_it_is_recorded(control: str, value: str, read: str) -> None:
    assert c.read(control, value, GPU) == read


@pytest.mark.parametrize(
    ("control", "value", "why"),
    [
        ("power", "300W", "give watts"),
        ("power", "0", "give watts"),
        ("power", "199", "accepts 200 to 700 W"),
        ("power", "701", "accepts 200 to 700 W"),
        ("clocks", "fast", "give MHz"),
        ("clocks", "1500-1200", "the lower clock first"),
        ("clocks", "100-1500", "accepts 210 to 1980 MHz"),
        ("clocks", "2000", "accepts 210 to 1980 MHz"),
        ("persistence", "yes", "give one of on, off, default"),
        ("reset", "default", "takes no value"),
        ("colour", "red", "use one of power"),
    ],
)
def test_unsupported_control_is_refused_with_the_supported_ones(
    control: str, value: str, why: str
) -> None:
    with pytest.raises(Refused, match=why):
        c.read(control, value, GPU)


def test_of_a_device_that_says_nothing_of_its_bounds_the_driver_is_asked() -> None:
    assert (c.read("power", "9000", BARE), c.read("clocks", "9000", BARE)) == ("9000", "9000-9000")


def test_set_controls_last_and_one_time_or_removed_ones_do_not() -> None:
    assert [
        c.lasts(*one) for one in (("power", "300"), ("power", ""), ("reset", ""), ("colour", "red"))
    ] == [True, False, False, False]
    assert (c.needs_free("reset"), c.needs_free("power"), c.needs_free("colour")) == (
        True,
        False,
        False,
    )
    assert (c.range_of("1200-1500"), c.range_of("")) == ((1200, 1500), (0, 0))


def test_a_policy_for_hot_devices_is_a_part_of_what_each_takes() -> None:
    policy = c.hot_policy("nvidia=power:60, *=clocks:50")
    assert policy == {"nvidia": ("power", 60), "*": ("clocks", 50)} and c.hot_policy("") == {}
    assert [
        c.part_of(*part, GPU)
        for part in (("power", 60), ("clocks", 50), ("power", 1), ("clocks", 1))
    ] == [
        "420",
        "210-990",
        "199",
        "210-210",
    ]
    assert c.part_of("power", 60, BARE) == ""
    for wrong in (
        "nvidia",
        "nvidia=power",
        "nvidia=power:0",
        "nvidia=power:100",
        "nvidia=fan:50",
        "=power:50",
    ):
        with pytest.raises(Refused, match="MUSTER_HEALTH_HOT"):
            c.hot_policy(wrong)


def test_of_two_values_the_stricter_is_the_one_that_allows_less() -> None:
    pairs = (("300", "420"), ("", "420"), ("300", ""), ("", ""), ("1500-1500", "210-990"))
    assert [c.stricter(*two) for two in pairs] == [
        "300", "420", "300", "", "210-990",
    ]  # fmt: skip
