"""Every page at three widths, light and dark: it shows its data, it fits, it asks its own origin
alone, and axe-core finds nothing serious. The pictures stay in build/browser/.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.common import facts as f
from tests.browser.chromium import tab
from tests.browser.showcase import Showcase
from tests.integration.gateway_world import KEY, World
from tests.integration.session_world import session_world

SIZES = [(390, 844), (900, 1000), (1440, 900)]


def allowed(text: str) -> bool:
    """The test plays no scheduler and no node, so their answers are missing here."""
    return "503" in text


@pytest.fixture
async def showcase(tmp_path: Path) -> AsyncIterator[tuple[World, Showcase]]:
    async with session_world(tmp_path) as world:
        shown = Showcase(world)
        await shown.fill()
        await world.settle()
        yield world, shown


def paths(shown: Showcase, world: World) -> dict[str, str]:
    jobs = list(world.gateway.cluster.jobs.values())
    running = next(job.job_id for job in jobs if job.state == "running")
    failed = next(job.job_id for job in jobs if job.state == "failed")
    return {
        "fleet": "/",
        "fleet-health": "/?by=health",
        "fleet-table": "/?view=table",
        "fleet-chosen": f"/?node={shown.nodes[9]}&gpu=6",
        "fleet-past": f"/?at={world.gateway.cluster.seq // 2}",
        "queue": "/queue",
        "jobs": "/jobs?all=1",
        "job": f"/jobs/{failed}",
        "job-timeline": f"/jobs/{failed}?tab=timeline",
        "job-logs": f"/jobs/{running}?tab=logs",
        "submit": "/submit",
        "models": "/models",
        "model": "/models/chat",
        "deploy": "/deploy",
        "tenants": "/tenants",
        "tenant": "/tenants/vision",
        "nodes": "/nodes",
        "node": f"/nodes/{shown.nodes[9]}",
        "audit": "/audit",
        "audit-access": "/audit?tab=access",
        "missing": "/nodes/there-is-none",
    }


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES, ids=[str(width) for width, _ in SIZES])
async def test_every_page_shows_fits_and_is_accessible(
    showcase: tuple[World, Showcase], browser: Any, size: tuple[int, int], dark: bool
) -> None:
    world, shown = showcase
    body = {"name": "chat", "command": ["serve", "{port}"], "replicas": 2}
    await world.ask("POST", "/v1/deployments", 201, json=body)
    look = f"{size[0]}-{'dark' if dark else 'light'}"
    missing = lambda text: allowed(text) or "404" in text  # noqa: E731
    async with tab(browser, world.url, *size, dark, allowed=missing) as page:
        await page.page.goto(world.url + "/sign-in")
        await page.page.wait_for_selector("form")
        await page.shot(f"sign-in-{look}")
        findings = {"sign-in": await page.violations()}
        await page.sign_in(KEY)
        for name, path in paths(shown, world).items():
            await page.open(path)
            await page.page.wait_for_timeout(250)
            await page.shot(f"{name}-{look}")
            findings[name] = await page.violations()
            wide = await page.page.evaluate("() => document.documentElement.scrollWidth")
            assert wide <= size[0], f"{name} is {wide} pixels wide at {size[0]}"
        assert {name: found for name, found in findings.items() if found} == {}
        page.check()


async def test_a_viewer_sees_its_tenant_and_no_actions(
    showcase: tuple[World, Showcase], browser: Any
) -> None:
    world, shown = showcase
    made = await world.ask(
        "POST", "/v1/keys", 201, json={"user": "ada", "tenant": "vision", "role": "viewer"}
    )
    job = next(job for job in world.gateway.cluster.jobs.values() if job.tenant == "vision")
    async with tab(browser, world.url, allowed=allowed) as page:
        await page.sign_in(made["key"])
        await page.page.get_by_text("other tenants").wait_for()
        await page.open("/jobs?all=1")
        assert await page.page.get_by_text("robotics").count() == 0
        for path in (f"/jobs/{job.job_id}", f"/nodes/{shown.nodes[0]}"):
            await page.open(path)
            buttons = await page.page.locator("#main .page-head button").count()
            assert buttons == 0
        assert await page.page.get_by_role("link", name="Submit a job").count() == 0
        await page.open("/audit")
        assert await page.page.get_by_role("link", name="Chain").count() == 0
        page.check()


async def test_pages_work_with_the_keyboard(showcase: tuple[World, Showcase], browser: Any) -> None:
    world, shown = showcase
    async with tab(browser, world.url, allowed=allowed) as page:
        await page.sign_in(KEY)
        await page.page.keyboard.press("Tab")
        assert await page.page.evaluate("() => document.activeElement.className") == "skip"
        await page.page.locator(".map canvas").focus()
        for _ in range(3):
            await page.page.keyboard.press("ArrowRight")
        said = page.page.locator(".map [role=status]")
        await said.filter(has_text=f"{shown.nodes[0]}, GPU 2").wait_for(state="attached")
        await page.page.wait_for_function("() => location.search.includes('gpu=2')")
        await page.page.keyboard.press("Enter")
        await page.page.wait_for_function("() => location.pathname !== '/'")
        await page.open("/jobs?all=1")
        await page.page.keyboard.press("/")
        assert await page.page.evaluate("() => document.activeElement.ariaLabel") == "Name"
        await page.page.locator("tbody a").first.focus()
        await page.page.keyboard.press("ArrowDown")
        await page.page.keyboard.press("Enter")
        await page.page.wait_for_function("() => /^.jobs.j/.test(location.pathname)")
        page.check()


async def test_the_theme_can_be_switched_and_is_kept(
    showcase: tuple[World, Showcase], browser: Any
) -> None:
    world, _ = showcase
    async with tab(browser, world.url, allowed=allowed) as page:
        await page.sign_in(KEY)
        await page.page.get_by_role("button", name="Switch to dark").click()
        await page.page.reload()
        await page.page.wait_for_selector(".shell")
        assert await page.page.evaluate("() => document.documentElement.dataset.theme") == "dark"
        page.check()


async def test_the_time_slider_shows_every_page_at_a_past_moment(
    showcase: tuple[World, Showcase], browser: Any
) -> None:
    world, shown = showcase
    then = world.gateway.cluster.seq
    await world.writers.register("node-new")
    await world.settle()
    async with tab(browser, world.url, allowed=allowed) as page:
        await page.sign_in(KEY)
        await page.page.get_by_text(f"{len(shown.nodes) + 1} nodes").wait_for()
        await page.open(f"/?at={then}")
        await page.page.get_by_text(f"{len(shown.nodes)} nodes").wait_for()
        await page.page.locator("nav.pages a", has_text="Nodes").click()
        await page.page.get_by_text(f"{len(shown.nodes)} nodes").wait_for()
        assert f"at={then}" in page.page.url
        drain = page.page.get_by_role("button", name="Drain").first
        assert await drain.is_disabled()
        await page.page.get_by_role("link", name="Back to now").click()
        await page.page.get_by_text(f"{len(shown.nodes) + 1} nodes").wait_for()
        page.check()


async def test_a_change_of_one_node_reaches_the_map(
    showcase: tuple[World, Showcase], browser: Any
) -> None:
    world, shown = showcase
    async with tab(browser, world.url, allowed=allowed) as page:
        await page.sign_in(KEY, f"/?node={shown.nodes[0]}")
        await page.page.locator(".chosen").wait_for()
        fault = shown.fault(shown.nodes[0], 0, "offline", "xid", "XID 79")
        await world.writers.on(shown.nodes[0], fault)
        await page.page.locator(".chosen").get_by_text("offline").wait_for()
        assert isinstance(fault, f.GpuFaulted)
        page.check()
