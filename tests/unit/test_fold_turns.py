"""Folds to past moments: one per tenant at a time, tenants in rotation, and a bounded number."""

import asyncio
from collections.abc import Iterator

import pytest

from services.api_gateway.moments.turns import FOLDS, Turns
from services.api_gateway.problems import Problem


class Rig:
    """Folds that end when the test says so."""

    def __init__(self) -> None:
        self.turns = Turns(FOLDS)
        self.begun: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.gates: dict[str, asyncio.Event] = {}

    def ask(self, name: str) -> asyncio.Task[None]:
        """Begin a fold; its tenant is the name's first letter."""
        task = asyncio.create_task(self._fold(name))
        self.tasks.append(task)
        return task

    async def _fold(self, name: str) -> None:
        self.gates[name] = asyncio.Event()
        async with self.turns.take(name[0]):
            self.begun.append(name)
            await self.gates[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self.gates[name].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_a_tenant_with_many_folds_does_not_delay_another() -> None:
    rig = Rig()
    for name in ("a1", "a2", "a3", "b1"):
        rig.ask(name)
    await rig.settle()
    assert rig.begun == ["a1", "b1"]
    await rig.end("a1")
    assert rig.begun == ["a1", "b1", "a2"]
    await rig.close()
    assert (rig.turns.running, rig.turns.waiting) == (set(), {})


async def test_tenants_take_turns() -> None:
    rig = Rig()
    for name in ("a1", "b1", "a2", "c1", "b2"):
        rig.ask(name)
    await rig.settle()
    assert len(rig.begun) == FOLDS.running
    await rig.end("a1")
    assert rig.begun == ["a1", "b1", "a2"]
    rig.ask("a3")
    await rig.end("a2")
    assert rig.begun == ["a1", "b1", "a2", "c1"]
    await rig.end("b1")
    assert rig.begun == ["a1", "b1", "a2", "c1", "b2"]
    await rig.close()


async def test_folds_of_a_tenant_and_of_all_are_bounded() -> None:
    rig = Rig()
    for number in range(FOLDS.per_tenant):
        rig.ask(f"a{number}")
    await rig.settle()
    with pytest.raises(Problem) as problem:
        await rig.ask("a9")
    assert problem.value.status == 429
    tenants = [chr(300 + number) for number in range(FOLDS.waiting)]
    for tenant in tenants:
        rig.ask(tenant)
    await rig.settle()
    with pytest.raises(Problem) as problem:
        await rig.ask("z")
    assert problem.value.status == 503
    await rig.close()
    assert (rig.turns.running, rig.turns.waiting) == (set(), {})


async def test_a_fold_that_is_cancelled_while_it_waits_gives_its_turn_to_the_next() -> None:
    rig = Rig()
    first, second = rig.ask("a1"), rig.ask("a2")
    rig.ask("a3")
    await rig.settle()
    second.cancel()
    await rig.settle()
    first.cancel()
    await rig.settle()
    assert rig.begun == ["a1", "a3"]
    await rig.close()
    assert (rig.turns.running, rig.turns.waiting) == (set(), {})


async def test_work_is_done_in_slices_to_its_end() -> None:
    turns, seen = Turns(FOLDS), 0

    def work() -> Iterator[int]:
        end = 50_000
        yield from range(end)

    async def other() -> None:
        nonlocal seen
        while True:
            seen += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    assert await turns.steps(work()) == 49_999
    assert await turns.steps(iter(())) is None
    assert seen > 1
    beside.cancel()
