"""MIG through the real binding over a library built from C.

Instances are created at their places, listed, removed, and undone after a failure.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from libs.common.errors import Refused
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.readings import Done, Lacking, MigInstance
from tests.drivers.fakes import Fakes
from tests.drivers.nvidia_alone import FIRST, SECOND, nvidia_alone

LOW, HIGH = (
    MigInstance(number=1, uuid="MIG-fake-1001", profile="3g.40gb", start=0, size=4),
    MigInstance(number=0, uuid="MIG-fake-1000", profile="3g.40gb", start=4, size=4),
)


@pytest_asyncio.fixture
async def driver(fakes: Fakes) -> AsyncIterator[LocalDriver]:
    fakes.tell("nvidia", "mig 0 1")
    driver = nvidia_alone()
    await driver.inventory()
    yield driver
    await driver.close()


async def there(driver: LocalDriver) -> tuple[MigInstance, ...]:
    done = await driver.control(FIRST, r.ListMigInstances())
    assert isinstance(done, Done)
    return done.instances


async def test_only_cards_in_mig_mode_have_instances_and_they_lack_other_readings(
    driver: LocalDriver,
) -> None:
    one, other = await driver.inventory()
    assert (one.mig, "3g.40gb" in one.mig_profiles) == (True, True)
    assert (other.mig, other.mig_profiles) == (False, ())


async def test_mig_instances_are_created_at_their_places_listed_and_removed(
    driver: LocalDriver,
) -> None:
    assert await there(driver) == ()
    assert await driver.control(FIRST, r.CreateMigInstance("3g.40gb", 4)) == Done(instances=(HIGH,))
    assert await driver.control(FIRST, r.CreateMigInstance("3g.40gb", 0)) == Done(instances=(LOW,))
    assert await there(driver) == (LOW, HIGH) and (LOW.slices, HIGH.slices) == (0b1111, 0b1111_0000)
    assert await driver.control(FIRST, r.DestroyMigInstance(0)) == Done()
    assert await there(driver) == (LOW,)
    assert await driver.control(FIRST, r.CreateMigInstance("1g.20gb", 6)) == Done(
        instances=(MigInstance(number=0, uuid="MIG-fake-1000", profile="1g.20gb", start=6, size=2),)
    )


@pytest.mark.parametrize(
    ("profile", "start", "why"),
    [
        ("9g.90gb", 0, "no profile 9g.90gb"),
        ("3g.40gb", 2, "3g.40gb cannot begin at slice 2 of this card, but at 0, 4"),
        ("1g.10gb", 7, "cannot begin at slice 7"),
        ("2g.20gb", 0, "Insufficient Resources"),
    ],
)
async def test_instance_at_an_invalid_or_occupied_place_is_refused(
    driver: LocalDriver, profile: str, start: int, why: str
) -> None:
    await driver.control(FIRST, r.CreateMigInstance("1g.10gb", 1))
    before = await there(driver)
    with pytest.raises(Refused, match=why):
        await driver.control(FIRST, r.CreateMigInstance(profile, start))
    assert await there(driver) == before


@pytest.mark.parametrize(
    "fault",
    [
        "nvmlDeviceCreateGpuInstanceWithPlacement 0 23",
        "nvmlGpuInstanceGetComputeInstanceProfileInfoV 0 3",
        "nvmlGpuInstanceCreateComputeInstance 0 23",
        "nvmlGpuInstanceGetInfo 0 999",
        "nvmlDeviceGetMaxMigDeviceCount 0 999",
        "nvmlDeviceGetMigDeviceHandleByIndex 0 6",
        "nvmlDeviceGetUUID 999 999",
    ],
)
async def test_instance_whose_creation_fails_is_removed_completely(
    driver: LocalDriver, fakes: Fakes, fault: str
) -> None:
    fakes.tell("nvidia", fault)
    with pytest.raises(Refused):
        await driver.control(FIRST, r.CreateMigInstance("7g.80gb", 0))
    fakes.tell("nvidia")
    assert await there(driver) == ()


async def test_a_failed_undo_is_reported_with_both_reasons(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "nvmlGpuInstanceCreateComputeInstance 0 23", "nvmlGpuInstanceDestroy 0 19")
    with pytest.raises(
        Refused, match="what was made of it could not be removed: In use by another client"
    ):
        await driver.control(FIRST, r.CreateMigInstance("7g.80gb", 0))
    fakes.tell("nvidia")
    assert await there(driver) == (
        MigInstance(number=0, uuid="", profile="7g.80gb", start=0, size=8),
    )
    assert await driver.control(FIRST, r.DestroyMigInstance(0)) == Done()


async def test_instances_outlive_their_creator_and_stay_while_in_use(
    driver: LocalDriver, fakes: Fakes
) -> None:
    await driver.control(FIRST, r.CreateMigInstance("3g.40gb", 4))
    await driver.close()
    fakes.tell("nvidia", "nvmlComputeInstanceDestroy 0 19")
    with pytest.raises(Refused, match="In use by another client"):
        await driver.control(FIRST, r.DestroyMigInstance(0))
    with pytest.raises(Refused, match="Not Found"):
        await driver.control(FIRST, r.DestroyMigInstance(5))
    assert await there(driver) == (HIGH,)


async def test_mig_mode_is_set_without_instances_and_lacking_on_other_cards(
    driver: LocalDriver, fakes: Fakes
) -> None:
    await driver.control(FIRST, r.CreateMigInstance("3g.40gb", 4))
    with pytest.raises(Refused, match="In use by another client"):
        await driver.control(FIRST, r.SetMigMode(False))
    await driver.control(FIRST, r.DestroyMigInstance(0))
    assert (
        await driver.control(FIRST, r.SetMigMode(False))
        == await driver.control(SECOND, r.SetMigMode(True))
        == Done()
    )
    assert [gpu.mig for gpu in await driver.inventory()] == [False, True]
    assert isinstance(await driver.control(FIRST, r.CreateMigInstance("1g.10gb", 0)), Lacking)
    fakes.tell("nvidia", "nvmlDeviceGetMigMode 0 3", "nvmlDeviceSetMigMode 0 3")
    for command in (r.SetMigMode(True), r.ListMigInstances()):
        assert await driver.control(FIRST, command) == Lacking("Not Supported")
    assert [gpu.mig for gpu in await driver.inventory()] == [False, True]


async def test_mig_mode_is_active_after_a_reset_where_the_card_needs_one(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "pending 1 1")
    assert await driver.control(SECOND, r.SetMigMode(True)) == Done("it counts after a reset")
    assert [gpu.mig for gpu in await driver.inventory()] == [True, False]
    (fakes.folder / "nvidia.reset").touch()
    await driver.close()
    assert [gpu.mig for gpu in await driver.inventory()] == [True, True]
