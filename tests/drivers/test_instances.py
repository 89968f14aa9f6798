"""The MIG instances of attempts over a real binding: made by their slices, swept by who owns them,
whatever the driver does.
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
from tests.drivers.test_nvidia import FIRST, SECOND, nvidia_alone

HIGH = MigInstance(0, "MIG-fake-1000", "3g.40gb", 4, 4)


def hold(uuid: GpuId = FIRST, profile: str = "3g.40gb", slices: int = 0b1111_0000) -> GpuHold:
    return GpuHold(uuid, 50, MIG, profile, slices)


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


async def test_an_instance_is_made_where_its_slices_say_and_a_whole_device_needs_none(
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
async def test_the_slices_of_an_instance_are_known_by_its_number_until_it_is_removed(
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


async def test_instances_that_no_attempt_owns_are_removed_whatever_made_them(node: Node) -> None:
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


async def test_an_end_asks_only_cards_on_which_there_may_be_one(node: Node, fakes: Fakes) -> None:
    assert await node.instances.release([FIRST], "mine.1") == {}
    fakes.tell("nvidia", "nvmlDeviceGetGpuInstances 0 999")
    assert await node.instances.release([FIRST], "mine.1") == {}
    fakes.tell("nvidia")
    await node.instances.make([hold()])
    assert await node.instances.release([FIRST], "mine.1") == {}
    assert await node.there() == []


async def test_a_card_that_does_not_answer_is_asked_again(node: Node, fakes: Fakes) -> None:
    await node.instances.make([hold()])
    fakes.tell("nvidia", "nvmlDeviceGetGpuInstances 0 3")
    await node.instances.release([FIRST], "mine.1")
    fakes.tell("nvidia")
    assert await node.instances.release([FIRST], "mine.1") == {}
    assert await node.there() == []


async def test_an_instance_made_by_hand_is_removed_before_an_attempt_takes_its_place(
    node: Node,
) -> None:
    assert await node.instances.release([FIRST], "mine.1") == {}
    await node.driver.control(FIRST, r.CreateMigInstance("3g.40gb", 4))
    assert await node.instances.make([hold()]) == {FIRST: HIGH}


async def test_an_instance_that_the_driver_does_not_remove_is_named_until_it_does(
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


async def test_what_is_removed_meanwhile_by_somebody_else_is_gone(node: Node, fakes: Fakes) -> None:
    await node.instances.make([hold()])
    fakes.tell("nvidia", "nvmlDeviceGetGpuInstanceById 0 6")
    assert "Not Found" in (await node.instances.sweep([FIRST]))[FIRST]
    fakes.tell("nvidia", "nvmlDeviceGetGpuInstances 0 999")
    assert (await node.instances.sweep([FIRST]))[FIRST].startswith(
        "nobody can tell whether a MIG instance is left"
    )


async def test_a_driver_that_hangs_half_way_is_killed_and_what_it_left_is_found_later(
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


async def test_a_device_that_is_set_aside_is_not_waited_for_again(node: Node, fakes: Fakes) -> None:
    fakes.tell("nvidia", "nvmlGpuInstanceCreateComputeInstance 0 hang")
    node.driver.vendors[0].process.answer_s = node.driver.vendors[0].process.begin_s = 0.5
    for _ in range(2):  # the first silence keeps what is known
        with pytest.raises(Refused):
            await node.instances.make([hold()])
    assert "its driver does not answer" in (await node.instances.sweep([FIRST]))[FIRST]
