"""What lists say when they are empty, and the words of ends and of sign-in."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Tab, tab
from tests.integration.gateway_world import KEY, World
from tests.integration.session_world import session_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with session_world(tmp_path) as found:
        await found.writers.begin_term()
        for node in ("node-1", "node-10", "node-2"):
            await found.writers.register(node)
        await found.settle()
        yield found


@pytest.fixture
async def page(world: World, browser: Any) -> AsyncIterator[Tab]:
    allowed = lambda text: "503" in text or "401" in text  # noqa: E731
    async with tab(browser, world.url, allowed=allowed) as found:
        yield found
        found.check()


async def test_an_empty_list_of_active_jobs_offers_those_that_ended_lately(
    world: World, page: Tab
) -> None:
    await world.run_to("completed", node="node-1", name="short")
    await page.sign_in(KEY, "/jobs")
    await page.page.get_by_text("1 ended in the last hour").wait_for()
    await page.shot("jobs-none-active")
    await page.page.get_by_role("link", name="show", exact=True).click()
    await page.page.locator("tr", has_text="short").wait_for()


async def test_a_cancelled_job_looks_stopped_not_failed(world: World, page: Tab) -> None:
    job = await world.run_to("running", node="node-1", name="stopped")
    await world.ask("POST", f"/v1/jobs/{job}/cancel", 202)
    await world.writers.finish(job, "node-1", exit_code=143)
    await world.writers.close(job, "cancelled", 143)
    await world.settle()
    await page.sign_in(KEY, f"/jobs/{job}")
    await page.page.locator(".ranks").get_by_text("stopped on request").wait_for()
    assert await page.page.locator(".ranks .tone-bad").count() == 0
    await page.open("/jobs?all=1")
    await page.page.locator("tr", has_text="stopped on request").wait_for()


async def test_nodes_are_in_the_order_of_their_numbers(world: World, page: Tab) -> None:
    await page.sign_in(KEY, "/nodes")
    await page.page.locator("tbody tr").nth(2).wait_for()
    names = await page.page.locator("tbody tr a.strong").all_inner_texts()
    assert names == ["node-1", "node-2", "node-10"]
    await page.page.get_by_text("of 6 in use").wait_for()


async def test_a_wrong_key_is_refused_in_plain_words(world: World, page: Tab) -> None:
    await page.page.goto(world.url)
    await page.page.get_by_label("API key").fill("wrong")
    await page.page.get_by_role("button", name="Sign in", exact=True).click()
    await page.page.get_by_text("This key is not accepted.").wait_for()
