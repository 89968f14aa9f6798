"""The browser of these tests: the system's Chromium, driven by Playwright.

`make browser` sets MUSTER_TEST_BROWSER and installs Playwright's Python package. The browser itself
comes from the system (Debian: `apt install chromium`); MUSTER_CHROMIUM names another one.
"""

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

ASKED: Final = "MUSTER_TEST_BROWSER"
PROGRAM: Final = "MUSTER_CHROMIUM"
NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ARTEFACTS: Final = Path(__file__).parents[2] / "build" / "browser"
AXE: Final = Path(__file__).with_name("vendor") / "axe.min.js"
# The settings in which a page must never be written to a disk that is too small in containers.
FLAGS: Final = ("--disable-dev-shm-usage", "--force-color-profile=srgb", "--hide-scrollbars")
SHOWN_MS: Final = 10_000
GO: Final = """url => {
  history.pushState(null, '', url);
  dispatchEvent(new PopStateEvent('popstate'));
}"""


def program() -> str | None:
    """Return the path of the browser, if there is one."""
    given = os.environ.get(PROGRAM)
    return given or next(filter(None, map(shutil.which, NAMES)), None)


def lacking() -> str:
    """Return why the tests cannot run here, and what to install; empty if they can."""
    if os.environ.get(ASKED) != "1":
        return "make browser runs it"
    if find_spec("playwright") is None:
        return "Playwright is not installed: run `pip install -e '.[browser]'`, or make browser"
    if program() is None:
        return (
            "no Chromium is installed: on Debian and Ubuntu run `apt install chromium`, or set "
            f"{PROGRAM} to the path of a browser of this kind"
        )
    return ""


@asynccontextmanager
async def chromium() -> AsyncIterator[Any]:
    """Run a browser without a window until the end of the block."""
    from playwright.async_api import async_playwright

    flags = [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program(), args=flags)
        try:
            yield browser
        finally:
            await browser.close()


class Tab:
    """One page, and what it must never do: fail, or ask another origin."""

    def __init__(self, page: Any, url: str, allowed: Callable[[str], bool]) -> None:
        self.page = page
        self.url = url
        self.troubles: list[str] = []
        self.foreign: list[str] = []
        self.allowed = allowed
        page.set_default_timeout(SHOWN_MS)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.troubles.append(f"page error: {error}"))
        page.on("dialog", lambda dialog: self.troubles.append(f"dialog: {dialog.message}"))
        page.on("request", self._asked)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning") and not self.allowed(message.text):
            self.troubles.append(f"console {message.type}: {message.text}")

    def _asked(self, request: Any) -> None:
        origin = self.url.split("://", 1)[1]
        if not request.url.startswith((self.url, f"ws://{origin}", "data:", "blob:")):
            self.foreign.append(request.url)

    async def sign_in(self, key: str, path: str = "/") -> None:
        await self.page.goto(self.url + path)
        await self.page.get_by_label("API key").fill(key)
        await self.page.get_by_role("button", name="Sign in", exact=True).click()
        await self.page.wait_for_selector(".shell")

    async def open(self, path: str) -> None:
        """Open a page as a link inside the dashboard would, and wait until it shows its data."""
        await self.page.evaluate(GO, path)
        await self.page.wait_for_selector("#main h1")
        await self.page.wait_for_function("() => !document.querySelector('#main .loading')")

    async def shot(self, name: str) -> None:
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        await self.page.screenshot(path=ARTEFACTS / f"{name}.png")

    async def violations(self) -> list[str]:
        """Return axe-core's serious and critical findings of the page as it is."""
        await self.page.evaluate(AXE.read_text())
        found = await self.page.evaluate("() => axe.run({resultTypes: ['violations']})")
        return [
            f"{each['id']} ({each['impact']}): {each['nodes'][0]['html'][:160]} "
            f"{each['nodes'][0]['failureSummary'][:200]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]

    def check(self) -> None:
        assert self.troubles == []
        assert self.foreign == []


@asynccontextmanager
async def tab(
    browser: Any,
    url: str,
    width: int = 1440,
    height: int = 900,
    dark: bool = False,
    allowed: Callable[[str], bool] = lambda text: False,
) -> AsyncIterator[Tab]:
    """A page in a new context, without cookies of others."""
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    try:
        yield Tab(await context.new_page(), url, allowed)
    finally:
        await context.close()
