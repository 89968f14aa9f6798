"""Each control as a driver call, and the driver's answer as an outcome.

The samples of the simulated devices show the values that were set.
"""

import pytest
from msgspec.structs import replace

from libs.common.devices import device_controls as c
from libs.common.messages import ControlOrder
from libs.common.model import GpuId
from services.node_agent.core.actions import ResetDevice
from services.node_agent.core.observations import DeviceReset
from services.node_agent.devices.device_commands import COMMANDS, UNKNOWN, carry_out, outcome_of
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import Done, Lacking
from services.node_agent.drivers.simulated import SimulatedDriver
from services.node_agent.health.resetting import reset

GPU = GpuId("GPU-n-0")


def order(
    control: str, value: str, outcome: str = "", detail: str = "", uuid: GpuId = GPU
) -> ControlOrder:
    return ControlOrder(
        uuid=uuid, control=control, value=value, request=7, outcome=outcome, detail=detail
    )


async def shown(driver: SimulatedDriver) -> tuple[object, object, object]:
    sample = (await driver.sample())[GPU]
    return sample.power_cap_mw, sample.clock_mhz, sample.power_mw


def test_every_control_but_the_reset_is_a_command() -> None:
    assert sorted(COMMANDS) == sorted(name for name in c.ROWS if name != c.RESET)
    assert [
        COMMANDS[name]("") for name in ("power", "clocks", "persistence", "compute-mode", "ecc")
    ] == [
        r.SetPowerCap(0),
        r.LockClocks(0, 0),
        r.SetPersistence(False),
        r.SetComputeMode("default"),
        r.SetEcc(None),
    ]
    assert [COMMANDS[name]("") for name in ("mig", "compute-partition", "memory-partition")] == [
        r.SetMigMode(False),
        r.SetPartition(compute="SPX"),
        r.SetPartition(memory="NPS1"),
    ]
    assert (COMMANDS["clocks"]("1200-1500"), COMMANDS["ecc"]("off")) == (
        r.LockClocks(1200, 1500),
        r.SetEcc(False),
    )


async def test_control_of_a_simulated_device_shows_in_its_samples_until_it_is_removed() -> None:
    driver = SimulatedDriver("n", 2)
    assert await shown(driver) == (700_000, 1980, 70_000)
    for control, value in (("power", "300"), ("clocks", "1200-1500")):
        assert await carry_out(driver, order(control, value)) == order(control, value, "done")
    assert await shown(driver) == (300_000, 1500, 70_000)
    assert (await driver.sample())[GpuId("GPU-n-1")].power_cap_mw == 700_000
    for control in ("power", "clocks"):
        assert await carry_out(driver, order(control, "")) == order(control, "", "done")
    assert await shown(driver) == (700_000, 1980, 70_000)


async def test_a_reset_loses_what_a_device_was_told_and_what_lasts_is_put_back_with_it() -> None:
    async def keep(name: str, data: bytes) -> None:
        """A folder that no process reads."""

    driver, power = SimulatedDriver("n", 1), order("power", "300", "done")
    await carry_out(driver, power)
    await carry_out(driver, order("clocks", "1500-1500"))
    found = await reset(driver, keep, ResetDevice(GPU, "asked", (power,)))
    assert found == DeviceReset(
        GPU, "", {"reset": "done", "driver": "answers", "memory": "free"}, controls=(power,)
    )
    assert await shown(driver) == (300_000, 1980, 70_000)


@pytest.mark.parametrize(
    ("asked", "outcome", "detail"),
    [
        (order("power", "5"), "failed", "5000 mW is out of range: give 200000 to 700000 mW"),
        (order("clocks", "100-1500"), "failed", "100 MHz is out of range: give 210 to 1980 MHz"),
        (
            order("power", "300", uuid=GpuId("x")),
            "failed",
            "this node has no GPU x: muster gpus lists them",
        ),
        (order("ecc", "on"), "lacking", "a simulated device has none"),
        (order("mig", "on"), "done", ""),
        (order("compute-partition", "CPX"), "lacking", "a simulated device has none"),
        (order("persistence", "on"), "done", "simulated: it has no effect"),
        (
            order("power", "300 W of a later version"),
            "lacking",
            UNKNOWN,
        ),
        (
            order("colour", "red"),
            "lacking",
            UNKNOWN,
        ),
    ],
)
async def test_control_that_is_not_applied_has_a_reason(
    asked: ControlOrder, outcome: str, detail: str
) -> None:
    assert await carry_out(SimulatedDriver("n", 1), asked) == replace(
        asked, outcome=outcome, detail=detail
    )


async def test_unknown_model_lacks_unknown_values() -> None:
    driver = SimulatedDriver("n", 1, "Simulated card")
    assert (
        (await carry_out(driver, order("power", "300"))).outcome
        == (await carry_out(driver, order("clocks", "300-300"))).outcome
        == "lacking"
    )
    assert await shown(driver) == (r.Lacking("a simulated device has none"),) * 3


def test_no_permission_is_told_apart_from_what_is_not_there() -> None:
    assert [outcome_of(each) for each in (Done(), Lacking("x"), Lacking("x", denied=True))] == [
        "done",
        "lacking",
        "denied",
    ]
