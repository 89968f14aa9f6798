"""A server that goes away and comes back: the page says since when, and misses nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from libs.common.transport.log_memory import MemoryStream
from tests.browser.chromium import tab
from tests.integration.gateway_world import KEY
from tests.integration.session_world import session_world

STALE_S = 5.0


def refused(text: str) -> bool:
    """The browser's message while nothing listens."""
    return "ERR_" in text or "WebSocket" in text or "503" in text


class Address:
    """A port that stays, in front of whichever gateway runs. It can also swallow everything."""

    def __init__(self) -> None:
        self.to: int | None = None
        self.is_silent = False
        self.port = 0
        self.tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Address"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self
            self.cut()

    def cut(self) -> None:
        """Close every connection."""
        for task in self.tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            if self.to is not None:
                there = await asyncio.open_connection("127.0.0.1", self.to)
                await asyncio.gather(self._copy(reader, there[1]), self._copy(there[0], writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self.tasks.discard(task)
            writer.close()

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                if not self.is_silent:
                    sink.write(data)
                    await sink.drain()
        finally:
            sink.close()


@pytest.fixture
async def address() -> AsyncIterator[Address]:
    async with Address().open() as found:
        yield found


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


async def test_a_page_recovers_by_sequence_when_the_server_was_killed(
    tmp_path: Path, browser: Any, address: Address
) -> None:
    stream = MemoryStream()
    url = f"http://127.0.0.1:{address.port}"
    async with tab(browser, url, allowed=refused) as page:
        async with session_world(tmp_path, stream=stream) as world:
            address.to = port_of(world.url)
            await world.writers.begin_term()
            await world.writers.register("n1")
            kept = await world.run_to("queued", name="kept")
            await page.sign_in(KEY, "/jobs?all=1")
            await page.page.get_by_text("Live").wait_for()
            row = page.page.locator("tr", has_text="kept")
            await row.get_by_text("queued").wait_for()
        address.to = None
        address.cut()
        await page.page.get_by_text("Stale since").wait_for(timeout=STALE_S * 1_000)
        await row.get_by_text("queued").wait_for()
        await page.shot("stale")
        async with session_world(tmp_path, stream=stream, instance="b") as world:
            await world.writers.begin_term()
            for move in (world.writers.place, world.writers.start):
                await move(kept, "n1")
            await world.submit(name="while-away")
            await world.settle()
            address.to = port_of(world.url)
            await page.page.get_by_text("Live").wait_for()
            await row.get_by_text("running").wait_for()
            await page.page.locator("tr", has_text="while-away").wait_for()
            page.check()


async def test_a_page_that_was_opened_while_the_server_was_away_shows_its_data_by_itself(
    tmp_path: Path, browser: Any, address: Address
) -> None:
    async with session_world(tmp_path) as world:
        address.to = port_of(world.url)
        await world.writers.begin_term()
        await world.writers.register("n1")
        await world.run_to("queued", name="kept")
        async with tab(browser, f"http://127.0.0.1:{address.port}", allowed=refused) as page:
            await page.sign_in(KEY)
            await page.open("/jobs?all=1")
            await page.open("/nodes")
            address.to = None
            address.cut()
            await page.page.get_by_text("Stale since").wait_for()
            for path in ("/jobs?all=1&user=tests", "/"):
                await page.open(path)
                await page.page.get_by_text("The gateway does not answer").wait_for()
            address.to = port_of(world.url)
            await page.page.get_by_text("1 node ").wait_for()
            await page.open("/jobs?all=1&user=tests")
            await page.page.locator("tr", has_text="kept").wait_for()
            page.check()


@asynccontextmanager
async def live_page(tmp_path: Path, browser: Any, address: Address) -> AsyncIterator[Any]:
    """A signed-in page of a gateway behind `address`, which gets its changes."""
    async with session_world(tmp_path) as world:
        address.to = port_of(world.url)
        await world.writers.begin_term()
        url = f"http://127.0.0.1:{address.port}"
        async with tab(browser, url, allowed=refused) as page:
            await page.sign_in(KEY)
            await page.page.get_by_text("Live").wait_for()
            yield page
            page.check()


async def test_a_server_that_answers_nothing_is_seen_within_five_seconds(
    tmp_path: Path, browser: Any, address: Address
) -> None:
    async with live_page(tmp_path, browser, address) as page:
        address.is_silent = True
        await page.page.get_by_text("Stale since").wait_for(timeout=(STALE_S + 1) * 1_000)
        address.is_silent = False
        address.cut()
        await page.page.get_by_text("Live").wait_for()


async def test_a_page_offers_the_version_that_came_with_an_upgrade(
    tmp_path: Path, browser: Any, address: Address
) -> None:
    async with live_page(tmp_path, browser, address) as page:
        newer = page.page.get_by_role("button", name="Load the new version")
        await page.page.wait_for_timeout(300)
        assert await newer.count() == 0
        await page.page.route(
            f"http://127.0.0.1:{address.port}/",
            lambda route: route.fulfill(headers={"etag": '"later"'}, body=""),
        )
        address.cut()
        await newer.wait_for()


async def test_a_page_reads_again_where_websockets_are_refused(
    tmp_path: Path, browser: Any
) -> None:
    async with (
        session_world(tmp_path) as world,
        tab(browser, world.url, allowed=refused) as page,
    ):
        await world.writers.begin_term()
        await page.page.route_web_socket("**/v1/ws", lambda socket: socket.close())
        asked: list[str] = []
        page.page.on("request", lambda request: asked.append(request.url))
        await page.sign_in(KEY, "/jobs?all=1")
        await page.page.get_by_text("Every 5 s").wait_for(timeout=20_000)
        await world.submit(name="seen-by-polling")
        await page.page.locator("tr", has_text="seen-by-polling").wait_for()
        before = len(asked)
        await page.page.wait_for_timeout(5_000)
        assert sum("/v1/jobs" in url for url in asked[before:]) <= 2
        page.check()


async def test_a_page_whose_key_is_revoked_asks_for_a_sign_in(tmp_path: Path, browser: Any) -> None:
    async with session_world(tmp_path) as world:
        await world.writers.begin_term()
        body = {"user": "ada", "tenant": "default", "role": "member"}
        made = await world.ask("POST", "/v1/keys", 201, json=body)
        ended = lambda text: refused(text) or "401" in text  # noqa: E731
        async with tab(browser, world.url, allowed=ended) as page:
            await page.sign_in(made["key"], "/jobs?all=1")
            await page.page.get_by_text("Live").wait_for()
            await world.ask("DELETE", f"/v1/keys/{made['id']}", 204)
            await page.page.get_by_label("API key").wait_for(timeout=20_000)
            assert "next=%2Fjobs" in page.page.url
            page.check()
