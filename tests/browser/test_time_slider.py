"""The time slider: a place on it keeps its meaning, and every commit can be reached."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Tab, tab
from tests.integration.gateway_world import KEY, World
from tests.integration.session_world import session_world

# The page's clock is ahead, so that the log looks longer than the test takes.
AHEAD = "{ const real = Date.now; Date.now = () => real() + 100_000; }"
ALLOWED = ("503",)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with session_world(tmp_path) as found:
        await found.writers.begin_term()
        await found.writers.register("n1")
        await found.submit(name="first")
        await found.settle()
        yield found


@pytest.fixture
async def page(world: World, browser: Any) -> AsyncIterator[Tab]:
    allowed = lambda text: any(word in text for word in ALLOWED)  # noqa: E731
    async with tab(browser, world.url, allowed=allowed) as found:
        await found.page.add_init_script(AHEAD)
        await found.sign_in(KEY, "/jobs?all=1")
        await found.page.locator(".range input").wait_for()
        yield found
        found.check()


async def click(page: Tab, part: float) -> int:
    """Click at a part of the bar, and return where the thumb stays."""
    bar = page.page.locator(".range input")
    box = await bar.bounding_box()
    await page.page.mouse.click(box["x"] + box["width"] * part, box["y"] + box["height"] / 2)
    await page.page.wait_for_function("() => location.search.includes('at=')")
    await page.page.wait_for_timeout(2_500)
    return int(await bar.input_value())


async def test_the_thumb_stays_where_it_was_put_and_moves_both_ways(page: Tab) -> None:
    for part in (0.5, 0.8, 0.3):
        assert await click(page, part) == pytest.approx(1_000 * part, abs=40)
    await page.page.keyboard.press("ArrowRight")
    await page.page.wait_for_timeout(2_500)
    assert int(await page.page.locator(".range input").input_value()) >= 260
    await page.shot("time-slider-past")


async def test_a_drag_with_pauses_keeps_its_scale(page: Tab) -> None:
    bar = page.page.locator(".range input")
    box = await bar.bounding_box()
    at = lambda part: (box["x"] + box["width"] * part, box["y"] + box["height"] / 2)  # noqa: E731
    await page.page.mouse.move(*at(0.9))
    await page.page.mouse.down()
    for part in (0.8, 0.7, 0.6):
        await page.page.mouse.move(*at(part))
        await page.page.wait_for_timeout(600)
        assert int(await bar.input_value()) == pytest.approx(1_000 * part, abs=25)
    await page.page.mouse.up()


async def test_the_left_end_is_the_oldest_moment_and_the_right_end_is_now(page: Tab) -> None:
    bar = page.page.locator(".range input")
    await bar.focus()
    await page.page.keyboard.press("Home")
    await page.page.wait_for_function("() => location.search.includes('at=1')")
    await page.page.wait_for_timeout(300)
    assert await page.page.locator(".messages p").count() == 0
    await page.page.get_by_text("Past ·").wait_for()
    await page.page.keyboard.press("End")
    await page.page.wait_for_function("() => !location.search.includes('at=')")


async def test_the_time_under_the_mouse_is_shown_and_a_time_can_be_typed(page: Tab) -> None:
    await page.page.locator(".range").hover()
    assert len(await page.page.locator(".range .under").inner_text()) == len("12:00:00")
    await page.page.get_by_role("button", name="Choose a date and time").click()
    await page.page.get_by_label("Show the cluster at").wait_for()
    await page.shot("time-slider-field")
    await page.page.keyboard.press("Enter")
    await page.page.wait_for_function("() => location.search.includes('at=')")


async def test_durations_of_the_past_count_up_to_the_shown_moment(world: World, page: Tab) -> None:
    job = await world.run_to("queued", name="old")
    await world.settle()
    await page.open(f"/jobs/{job}?at={world.gateway.cluster.seq}")
    await page.page.get_by_text("Past ·").wait_for()
    # By the page's own clock, it would have waited for more than a minute.
    await page.page.locator(".page-head .sub", has_text=" · 0s · ").wait_for()


async def test_a_form_says_why_nothing_can_be_submitted_in_the_past(page: Tab) -> None:
    await page.open("/submit?at=1")
    assert await page.page.get_by_role("button", name="Submit job").is_disabled()
    await page.shot("submit-past")
    await page.page.locator("form").get_by_role("link", name="Go back to now").click()
    assert not await page.page.get_by_role("button", name="Submit job").is_disabled()
