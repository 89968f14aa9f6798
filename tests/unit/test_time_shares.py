"""A tenant that used much lately works in turns; one that did not never waits."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from services.api_gateway.access import time_shares
from services.api_gateway.access.time_shares import (
    ALONE_S,
    CHANGE_S,
    CREDIT_S,
    KEPT_MAX,
    PAUSE_MAX_S,
    RETURNED,
    ROUND_S,
    STEP_S,
    USED_MAX_S,
    TimeShares,
)


def spend(shares: TimeShares, tenant: str, spent_s: float = 2 * CREDIT_S) -> None:
    share = shares.share(tenant)
    share.charge(spent_s, time.perf_counter())
    share.step_s = STEP_S


def both_active(shares: TimeShares) -> None:
    """Two tenants have taken a step."""
    assert not shares.is_over(shares.share("calm"))
    shares.is_over(shares.share("storm"))
    shares.is_over(shares.share("calm"))


@asynccontextmanager
async def running(shares: TimeShares) -> AsyncGenerator[None]:
    task = asyncio.create_task(shares.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def steps(count: int, done: list[int]) -> int:
    for number in range(count):
        await asyncio.sleep(0)
        done.append(number)
    return count


async def test_a_calm_tenant_never_waits_for_a_turn() -> None:
    shares, done = TimeShares(), list[int]()
    both_active(shares)
    spend(shares, "storm")
    assert await shares.in_share("calm", steps(5, done)) == 5  # nobody gives turns here
    assert len(done) == 5


async def test_a_tenant_over_its_credit_waits_for_its_turn() -> None:
    shares, done = TimeShares(), list[int]()
    both_active(shares)
    spend(shares, "storm")
    task = asyncio.create_task(shares.in_share("storm", steps(3, done)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not done
    async with running(shares), asyncio.timeout(10):
        assert await task == 3


async def test_a_tenant_that_is_alone_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    shares, done = TimeShares(), list[int]()
    spend(shares, "storm")
    assert await shares.in_share("storm", steps(3, done)) == 3
    both_active(shares)
    share = shares.share("storm")
    spend(shares, "storm", USED_MAX_S)
    assert shares.is_over(share)
    now_s = time.perf_counter()
    monkeypatch.setattr(time_shares.time, "perf_counter", lambda: now_s + ALONE_S + 1)
    spend(shares, "storm", USED_MAX_S)
    assert not shares.is_over(share)


async def test_a_round_is_bounded_and_the_tenant_with_least_use_goes_first() -> None:
    shares = TimeShares()
    spend(shares, "most", USED_MAX_S)
    spend(shares, "less", USED_MAX_S / 2)
    most = [shares._turn(shares.share("most")) for _ in range(100)]
    less = [shares._turn(shares.share("less")) for _ in range(3)]
    shares.give()
    given = round(ROUND_S / STEP_S)
    assert all(turn.done() for turn in less)
    assert sum(turn.done() for turn in most) in (given - 3, given - 2)  # rounding
    while shares.ready:
        shares.give()
    assert all(turn.done() for turn in most)


async def test_two_tenants_with_equal_use_share_a_round() -> None:
    shares = TimeShares()
    one, other = shares.share("one"), shares.share("other")
    one.used_s = other.used_s = USED_MAX_S
    one.at_s = other.at_s
    turns = [[shares._turn(share) for _ in range(50)] for share in (one, other)]
    for _ in range(4):
        shares.give()
    first, second = (sum(turn.done() for turn in each) for each in turns)
    assert abs(first - second) <= 4


async def test_credit_comes_back_and_debt_is_bounded() -> None:
    share = TimeShares().share("storm")
    share.at_s = 0.0
    share.charge(100.0, 0.0)
    assert share.used_s == USED_MAX_S
    assert share.left_over(USED_MAX_S / RETURNED / 2) == pytest.approx(USED_MAX_S / 2)
    assert share.left_over(USED_MAX_S / RETURNED + 1) == 0.0


async def test_a_cancellation_reaches_work_that_waits_for_a_turn() -> None:
    shares, ended = TimeShares(), list[str]()
    both_active(shares)

    async def work() -> None:
        try:
            spend(shares, "storm")
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    task = asyncio.create_task(shares.in_share("storm", work()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert shares.share("storm").waiting
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]
    shares.give()  # passes over the turn that nobody waits for
    assert not shares.ready


async def test_an_error_of_an_awaited_future_reaches_the_work() -> None:
    shares = TimeShares()
    failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            await failing
        except ValueError:
            return "caught"
        return "missed"

    task = asyncio.create_task(shares.in_share("calm", work()))
    await asyncio.sleep(0)
    failing.set_exception(ValueError())
    assert await task == "caught"


async def test_work_of_other_tasks_is_charged_and_waits() -> None:
    shares = TimeShares()
    both_active(shares)
    await shares.turn("storm", CREDIT_S / 2)
    waiting = asyncio.create_task(shares.turn("storm", 2 * CREDIT_S))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    async with running(shares), asyncio.timeout(10):
        await waiting


async def test_work_that_a_change_causes_elsewhere_makes_turns_worth_more() -> None:
    shares = TimeShares()
    spend(shares, "storm", USED_MAX_S)
    shares.owe_change("storm", 0)
    shares.owe_change("", 1_000)  # an operator's
    turns = [shares._turn(shares.share("storm")) for _ in range(2 * round(ROUND_S / STEP_S))]
    assert shares.give() == pytest.approx(CHANGE_S + STEP_S)
    assert sum(turn.done() for turn in turns) == 1
    assert shares.give() < 2 * ROUND_S  # nothing is owed any more
    shares.owe("storm", 100.0)
    assert shares.share("storm").owed_s <= USED_MAX_S


async def test_a_pause_follows_a_round_while_a_calm_tenant_is_active(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares, done, pauses = TimeShares(), list[int](), list[float]()
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(time_shares.asyncio, "sleep", noted)
    both_active(shares)
    spend(shares, "storm", USED_MAX_S)
    shares.owe("storm", 10 * PAUSE_MAX_S)
    async with running(shares), asyncio.timeout(10):
        await shares.in_share("storm", steps(3, done))
    assert max(pauses) == PAUSE_MAX_S


async def test_tenants_with_their_whole_credit_are_forgotten() -> None:
    shares = TimeShares()
    for number in range(KEPT_MAX):
        shares.share(f"t{number}")
    spend(shares, "t7", USED_MAX_S)
    shares.share("one more")
    assert set(shares.shares) == {"t7", "one more"}
