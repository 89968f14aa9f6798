"""The virtual loop: time jumps, a killed process does nothing more, a paused one goes on later."""

import asyncio

import pytest

from tests.sim.loop import Process, Stuck, VirtualLoop, run


async def ticking(seen: list[float]) -> None:
    while True:
        await asyncio.sleep(1.0)
        seen.append(asyncio.get_running_loop().time())


async def watched(act: str) -> list[float]:
    process, seen = Process("p"), []
    process.spawn(ticking(seen))
    await asyncio.sleep(2.5)
    if act == "kill":
        process.kill()
    elif act == "pause":
        process.pause(3.0)
    await asyncio.sleep(4.0)
    return seen


def test_an_hour_of_virtual_time_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(3_600)
        return asyncio.get_running_loop().time()

    assert run(main())[0] == 3_600


def test_a_killed_process_does_nothing_more() -> None:
    assert run(watched("kill"))[0] == [1.0, 2.0]


def test_a_paused_process_goes_on_later() -> None:
    assert run(watched("pause"))[0] == [1.0, 2.0, 5.5, 6.5]


def test_a_loop_in_which_nothing_can_happen_says_so() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck):
        run(main())


def test_the_loop_is_at_zero_when_it_begins() -> None:
    loop = VirtualLoop()
    assert loop.time() == 0.0
    loop.close()
