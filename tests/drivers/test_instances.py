"""The MIG instances of attempts, over the real binding.

They are created at their slices and removed without an owner, also when the driver fails.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from libs.common.errors import Refused
from libs.common.model import MIG, Gpu, GpuHold, GpuId
from services.node_agent.devices.instances import Instances
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import MigInstance
from tests.drivers.fakes import Fakes
from tests.drivers.nvidia_alone import FIRST, SECOND, nvidia_alone

HIGH = MigInstance(number=0, uuid="MIG-fake-1000", profile="3g.40gb", start=4, size=4)


def hold(uuid: GpuId = FIRST, profile: str = "3g.40gb", slices: int = 0b1111_0000) -> GpuHold:
    return GpuHold(uuid=uuid, share=50, isolation=MIG, mig_profile=profile, mig_slices=slices)


class Node:
    """A node on which the test sets which attempt owns which slices."""

    def __init__(self) -> None:
        self.driver = nvidia_alone()
        self.gpus: list[Gpu] = []
        self.owned: dict[str, dict[GpuId, int]] = {}
        self.instances = Instances(self.driver, lambda: self.gpus, self.others)

    async def begin(self) -> None:
        self.gpus = list(await self.driver.inventory())

    def others(self, key: str) -> dict[GpuId, int]:
        return {
            uuid: slices
            for other, held in self.owned.items()
            if other != key
            for uuid, slices in held.items()
        }

    async def there(self) -> list[MigInstance]:
        done = await self.driver.control(FIRST, r.ListMigInstances())
        assert isinstance(done, r.Done)
        return list(done.instances)


@pytest_asyncio.fixture
async def node(fakes: Fakes) -> AsyncIterator[Node]:
    fakes.tell("nvidia", "mig 0 1")
    node = Node()
    await node.begin()
    yield node
    await node.driver.close()


async def test_instance_is_created_at_its_slices_and_whole_devices_need_none(
    node: Node,
) -> None:
    assert await node.instances.make([hold(), GpuHold(SECOND)]) == {FIRST: HIGH}
    assert await node.instances.make([]) == {}


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (GpuHold(FIRST), "GPU-fake-0 is in MIG mode by now"),
        (
            hold(SECOND),
            "MIG instance 3g.40gb at slice 4 of GPU GPU-fake-1 was not made: Not Supported",
        ),
        (hold(slices=0b0011_0000), "has other slices than its card's table says"),
        (hold(GpuId("GPU-none")), "this node has no GPU"),
    ],
)
async def test_an_instance_that_no_longer_fits_the_card_is_refused_with_the_reason(
    node: Node, wanted: GpuHold, why: str
) -> None:
    with pytest.raises(Refused, match=why):
        await node.instances.make([wanted])


@pytest.mark.attack
async def test_instance_number_has_its_slices_until_it_is_removed(
    node: Node,
) -> None:
    assert node.instances.slices_of(FIRST, 0) is None
    await node.instances.make([hold()], "mine.1")
    node.owned = {"mine.1": {FIRST: 0b1111_0000}}
    assert (node.instances.slices_of(FIRST, 0), node.instances.slices_of(FIRST, 7)) == (
        0b1111_0000,
        0,
    )
    again = Instances(node.driver, lambda: node.gpus, node.others)
    await again.sweep([FIRST])
    assert again.slices_of(FIRST, 0) == 0b1111_0000
    node.owned = {}
    assert await again.sweep([FIRST]) == {} and again.slices_of(FIRST, 0) == 0


async def test_instances_without_an_attempt_are_removed_even_if_another_program_created_them(
    node: Node,
) -> None:
    await node.instances.make([hold()])
    node.owned = {"mine.1": {FIRST: 0b1111_0000}}
    await node.instances.make([hold(profile="1g.10gb", slices=0b10)])
    assert await node.instances.sweep([FIRST, SECOND]) == {}
    assert await node.there() == [HIGH]
    assert (
        await node.instances.sweep([FIRST], "mine.1")
        == {}
        == await node.instances.sweep([FIRST], "mine.1")
    )
    assert await node.there() == []


async def test_end_of_an_attempt_lists_instances_only_where_there_may_be_any(
    node: Node, fakes: Fakes
) -> None:
    assert await node.instances.release([FIRST], "mine.1") == {}
    fakes.tell("nvidia", "nvmlDeviceGetGpuInstances 0 999")
    assert await node.instances.release([FIRST], "mine.1") == {}
    fakes.tell("nvidia")
    await node.instances.make([hold()])
    assert await node.instances.release([FIRST], "mine.1") == {}
    assert await node.there() == []


async def test_card_that_does_not_answer_is_called_again(node: Node, fakes: Fakes) -> None:
    await node.instances.make([hold()])
    fakes.tell("nvidia", "nvmlDeviceGetGpuInstances 0 3")
    await node.instances.release([FIRST], "mine.1")
    fakes.tell("nvidia")
    assert await node.instances.release([FIRST], "mine.1") == {}
    assert await node.there() == []


async def test_instance_created_by_hand_is_removed_before_an_attempt_uses_its_slices(
    node: Node,
) -> None:
    assert await node.instances.release([FIRST], "mine.1") == {}
    await node.driver.control(FIRST, r.CreateMigInstance("3g.40gb", 4))
    assert await node.instances.make([hold()]) == {FIRST: HIGH}


async def test_instance_that_the_driver_does_not_remove_is_named_until_it_is_gone(
    node: Node, fakes: Fakes
) -> None:
    await node.instances.make([hold()])
    fakes.tell("nvidia", "nvmlComputeInstanceDestroy 0 19")
    (why,) = (await node.instances.sweep([FIRST])).values()
    assert why == (
        "a MIG instance that no job owns is left (3g.40gb at slice 4): GPU GPU-fake-0: In "
        "use by another client"
    )
    fakes.tell("nvidia", "nvmlComputeInstanceDestroy 0 4")
    assert "Insufficient Permissions" in (await node.instances.sweep([FIRST]))[FIRST]
    fakes.tell("nvidia")
    assert await node.instances.sweep([FIRST]) == {}


async def test_instance_removed_by_another_program_counts_as_gone(node: Node, fakes: Fakes) -> None:
    await node.instances.make([hold()])
    fakes.tell("nvidia", "nvmlDeviceGetGpuInstanceById 0 6")
    assert "Not Found" in (await node.instances.sweep([FIRST]))[FIRST]
    fakes.tell("nvidia", "nvmlDeviceGetGpuInstances 0 999")
    assert (await node.instances.sweep([FIRST]))[FIRST].startswith(
        "the MIG instances cannot be listed, so one may be left"
    )


async def test_driver_that_hangs_in_a_creation_is_killed_and_its_rest_found_later(
    node: Node, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "nvmlGpuInstanceCreateComputeInstance 0 hang")
    node.driver.vendors[0].process.answer_s, node.driver.vendors[0].aside_s = 0.5, 0.0
    with pytest.raises(Refused, match="did not answer within"):
        await node.instances.make([hold()])
    fakes.tell("nvidia")
    assert [one.uuid for one in await node.there()] == [""]
    assert await node.instances.sweep([FIRST]) == {}
    assert await node.there() == []


async def test_device_set_aside_is_not_called_again(node: Node, fakes: Fakes) -> None:
    fakes.tell("nvidia", "nvmlGpuInstanceCreateComputeInstance 0 hang")
    node.driver.vendors[0].process.answer_s = node.driver.vendors[0].process.begin_s = 0.5
    for _ in range(2):  # the first silence keeps what is known
        with pytest.raises(Refused):
            await node.instances.make([hold()])
    assert "its driver does not answer" in (await node.instances.sweep([FIRST]))[FIRST]
