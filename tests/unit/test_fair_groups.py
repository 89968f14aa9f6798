"""A writer takes groups of facts from share to share, and those of one share in order."""

import asyncio

from libs.common.transport.fair_groups import FairGroups, Group


async def groups(count: int) -> list[Group]:
    loop = asyncio.get_running_loop()
    return [Group((), loop.create_future(), number) for number in range(count)]


def taken(waiting: FairGroups, count: int) -> list[Group]:
    found = []
    for _ in range(count):
        following = waiting.next()
        found.append(waiting.take())
        assert found[-1] is following
    return found


async def test_a_group_of_a_calm_tenant_does_not_wait_for_those_of_a_storm() -> None:
    waiting, storm, calm = FairGroups(), await groups(100), await groups(2)
    for group in storm:
        waiting.add(group, "storm")
    for group in calm:
        waiting.add(group, "calm")
    assert taken(waiting, 4) == [storm[0], calm[0], storm[1], calm[1]]
    assert taken(waiting, 98) == storm[2:]
    assert not waiting


async def test_groups_that_were_put_back_come_first_and_in_order() -> None:
    waiting, first, later = FairGroups(), await groups(4), await groups(1)
    for group in first:
        waiting.add(group, "one")
    kept = taken(waiting, 4)[1:]
    waiting.add(later[0], "one")
    waiting.put_back(kept)
    assert len(waiting) == 4 and set(map(id, waiting)) == set(map(id, (*kept, *later)))
    assert taken(waiting, 4) == [*kept, *later]


async def test_a_group_is_removed_by_its_future() -> None:
    waiting, some = FairGroups(), await groups(4)
    waiting.add(some[0], "one")
    waiting.add(some[1], "one")
    waiting.add(some[2], "other")
    assert waiting.remove(some[0].future) and waiting.remove(some[2].future)
    assert not waiting.remove(some[0].future)
    waiting.put_back([some[3]])
    assert waiting.remove(some[3].future)
    assert taken(waiting, 1) == [some[1]] and not waiting
