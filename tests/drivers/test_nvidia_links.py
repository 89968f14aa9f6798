"""Errors of NVLinks, as NVIDIA's driver reports them for each link."""

from collections.abc import AsyncIterator

import pynvml
import pytest
import pytest_asyncio

from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.readings import (
    NOT_READ,
    Lacking,
    LinkErrors,
    Sample,
)
from services.node_agent.drivers.vendors.nvidia import SELDOM
from services.node_agent.drivers.vendors.nvidia_links import AGAIN, KINDS, LINK_COUNT
from tests.drivers.fakes import Fakes
from tests.drivers.nvidia_alone import FIRST, SECOND, nvidia_alone


@pytest_asyncio.fixture
async def driver(fakes: Fakes) -> AsyncIterator[LocalDriver]:
    driver = nvidia_alone()
    yield driver
    await driver.close()


@pytest.mark.attack
@pytest.mark.parametrize(
    ("generation", "kinds", "total"),
    [
        (4, {161: "replay", 162: "recovery", 163: "crc"}, 33),
        (5, {215: "recovery", 214: "recovery_failed"}, 11),
    ],
)
async def test_errors_of_nvlinks_are_read_for_each_link(
    driver: LocalDriver, fakes: Fakes, generation: int, kinds: dict[int, str], total: int
) -> None:
    counts = [f"field_{field}_{link} 0 {5 + link}" for field in kinds for link in (0, 1)]
    fakes.tell("nvidia", "links 0 2", f"link_generation 0 {generation}", *counts)
    await driver.inventory()
    samples = await driver.sample()
    one, other = samples[FIRST], samples[SECOND]
    words = sorted(kinds.values())
    expected = [LinkErrors(link, kind, 5 + link) for link in (0, 1) for kind in words]
    assert (one.link_counts, one.link_errors) == (tuple(expected), total)
    assert (other.link_counts, other.link_errors) == (NOT_READ, 38 + 52 + 59)


async def next_read(driver: LocalDriver) -> Sample:
    """The first device's sample after its seldom readings were read again."""
    samples = [(await driver.sample())[FIRST] for _ in range(SELDOM)]
    return samples[-1]


async def test_sum_of_link_errors_is_lacking_if_one_link_does_not_answer(
    driver: LocalDriver, fakes: Fakes
) -> None:
    told = ("links 0 2", "link_generation 0 4", "field_161_0 0 7")
    fakes.tell("nvidia", *told)
    await driver.inventory()
    assert (await driver.sample())[FIRST].link_errors == 7
    fakes.tell("nvidia", *told, "field_161_1 0 -1")
    assert (await driver.sample())[FIRST].link_errors == 7
    found = await next_read(driver)
    assert found.link_errors == found.link_counts == Lacking("Unknown Error")
    fakes.tell("nvidia", *told)
    assert (await next_read(driver)).link_errors == 7


async def test_links_that_come_up_later_are_found_by_the_next_description(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "link_generation 0 4")
    await driver.inventory()
    assert (await driver.sample())[FIRST].link_errors == 38 + 52 + 59
    fakes.tell("nvidia", "links 0 1", "link_generation 0 4", "field_163_0 0 2")
    assert (await next_read(driver)).link_errors == 38 + 52 + 59
    await driver.inventory()
    assert (await driver.sample())[FIRST].link_errors == 2


async def test_links_that_come_up_later_are_found_after_a_while(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "link_generation 0 4")
    await driver.inventory()
    await driver.sample()
    fakes.tell("nvidia", "links 0 1", "link_generation 0 4", "field_163_0 0 2")
    found = [(await next_read(driver)).link_errors for _ in range(AGAIN + 1)]
    assert set(found[:-1]) == {38 + 52 + 59} and found[-1] == 2


def test_link_fields_exist_in_the_binding() -> None:
    assert (LINK_COUNT, list(KINDS)) == (
        pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT,
        [
            pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
            pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
            pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
            pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
            pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
        ],
    )
