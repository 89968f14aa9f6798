"""A gateway's full collections look at what is new, and every so often at everything."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from services.api_gateway import collecting
from services.api_gateway.collecting import ALL_EVERY_S, NEVER, Collecting


class Cycle:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_new_cycles_are_freed_and_what_is_alive_is_excluded() -> None:
    kept, dropped = Cycle(), Cycle()
    seen = weakref.ref(dropped)
    del dropped
    Collecting().begin()
    assert seen() is None and gc.get_threshold()[2] == NEVER
    assert gc.get_freeze_count() > 0 and kept.itself is kept


def test_what_was_excluded_in_use_is_freed_when_everything_is_looked_at() -> None:
    made, used = Collecting(), Cycle()
    made.begin()
    seen = weakref.ref(used)
    del used
    made.collect()
    assert seen() is not None
    made.all_at_s -= ALL_EVERY_S
    made.collect()
    assert seen() is None


async def test_it_collects_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "EVERY_S", 0.001)
    monkeypatch.setattr(collecting, "LOOK_S", 0.001)
    seen, answers = weakref.ref(Cycle()), iter([False, False, True])
    task = asyncio.create_task(Collecting().run(lambda: next(answers)))
    async with asyncio.timeout(10):
        while seen() is not None:
            await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
