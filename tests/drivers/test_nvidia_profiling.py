"""NVML's profiling counters: means between two samples, as readings and as metrics."""

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.readings import Lacking, Sample
from services.node_agent.drivers.vendors.nvidia import SELDOM
from services.node_agent.metrics.exposition import text
from tests.drivers.fakes import Fakes
from tests.drivers.nvidia_alone import FIRST, SECOND, nvidia_alone

# Longer than the least time between two samples of the counters.
PAUSE_S = 0.15
MIB = 1 << 20


@pytest_asyncio.fixture
async def driver(fakes: Fakes) -> AsyncIterator[LocalDriver]:
    driver = nvidia_alone()
    yield driver
    await driver.close()


async def sampled(driver: LocalDriver, rounds: int = 2) -> dict[str, Sample]:
    """Return the samples after the counters were read so often."""
    await driver.inventory()
    samples = await driver.sample()
    for _ in range(rounds - 1):
        await asyncio.sleep(PAUSE_S)
        for _ in range(SELDOM):
            samples = await driver.sample()
    return {str(uuid): sample for uuid, sample in samples.items()}


async def test_counters_are_means_between_two_samples(driver: LocalDriver, fakes: Fakes) -> None:
    fakes.tell("nvidia", "profiling * 1", "gpm_2 0 93")
    first = (await sampled(driver, 1))[FIRST]
    assert first.sm_active_permille == Lacking("the first sample of the counters was taken now")
    found = (await sampled(driver))[FIRST]
    assert (found.sm_active_permille, found.sm_occupancy_permille) == (930, 30)
    assert (found.tensor_active_permille, found.memory_bandwidth_permille) == (50, 100)
    assert (found.pcie_sent_bytes_per_s, found.pcie_received_bytes_per_s) == (20 * MIB, 21 * MIB)
    assert (found.link_received_bytes_per_s, found.link_sent_bytes_per_s) == (60 * MIB, 61 * MIB)


async def test_counters_have_names_of_ours_and_those_of_nvidia_s_exporter(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "profiling 0 1", "gpm_5 0 71")
    samples = await sampled(driver)
    gpus = await driver.inventory()
    lines = text("n", gpus, {gpu.uuid: samples[gpu.uuid] for gpu in gpus}, {}).splitlines()
    told = {line.split("{")[0]: line.rsplit(" ", 1)[1] for line in lines if FIRST in line}
    assert told["muster_gpu_tensor_active_ratio"] == "0.71"
    assert told["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"] == "0.71"
    assert told["muster_gpu_link_sent_bytes_per_second"] == str(61 * MIB)
    assert not any(SECOND in line for line in lines if "tensor" in line.lower())


async def test_device_without_counters_says_so(driver: LocalDriver, fakes: Fakes) -> None:
    found = (await sampled(driver))[FIRST]
    assert found.sm_active_permille == Lacking("the device has no profiling counters")
    assert found.busy_percent == 37


async def test_counter_that_a_card_lacks_is_missing_alone(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "profiling * 1", "gpm_60 * -3")
    found = (await sampled(driver))[FIRST]
    assert found.link_received_bytes_per_s == Lacking("Not Supported")
    assert found.sm_active_permille == 20


async def test_driver_that_refuses_the_counters_still_gives_the_rest(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "profiling * 1", "nvmlGpmSampleGet * 3")
    found = (await sampled(driver))[FIRST]
    assert found.tensor_active_permille == Lacking("Not Supported")
    assert found.busy_percent == 37
