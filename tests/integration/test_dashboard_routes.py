"""The dashboard over HTTP: its pages need no key, are not API, and come with their policy."""

from pathlib import Path

import aiohttp
import pytest

from services.api_gateway.dashboard.files import SECURITY, Files
from services.api_gateway.dashboard.routes import PAGES
from tests.integration.gateway_world import gateway_world

FILES = Files()


@pytest.mark.parametrize("page", PAGES)
async def test_every_page_is_served_without_a_key_and_with_its_policy(
    tmp_path: Path, page: str
) -> None:
    path = page.replace("{", "").replace("}", "")
    async with (
        gateway_world(tmp_path) as world,
        aiohttp.ClientSession() as browser,
        browser.get(world.url + path) as answer,
    ):
        assert answer.status == 200
        assert await answer.read() == FILES.page.data
        assert answer.headers["content-security-policy"] == FILES.policy
        assert answer.headers["cache-control"] == "no-cache"
        assert SECURITY.items() <= {k.lower(): v for k, v in answer.headers.items()}.items()


async def test_files_are_kept_for_ever_and_not_sent_twice(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world, aiohttp.ClientSession() as browser:
        url = f"{world.url}/dashboard/{FILES.digest}/main.js"
        async with browser.get(url) as answer:
            assert answer.status == 200
            assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
            assert "immutable" in answer.headers["cache-control"]
            etag = answer.headers["etag"]
        async with browser.get(url, headers={"if-none-match": etag}) as answer:
            assert (answer.status, await answer.read()) == (304, b"")
        async with browser.get(url.replace(FILES.digest, "old")) as answer:
            assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path", ["nothing.js", "../files.py", "%2e%2e/files.py", "vendor/SHA256SUMS", "index.html"]
)
async def test_no_other_file_is_served(tmp_path: Path, path: str) -> None:
    async with (
        gateway_world(tmp_path) as world,
        aiohttp.ClientSession() as browser,
        browser.get(f"{world.url}/dashboard/{FILES.digest}/{path}") as answer,
    ):
        assert answer.status == 404
        assert answer.headers["content-type"] == "application/problem+json"


async def test_a_path_that_is_no_page_stays_a_problem(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world, aiohttp.ClientSession() as browser:
        async with browser.get(f"{world.url}/nowhere") as answer:
            assert answer.status == 404
        async with browser.post(f"{world.url}/jobs") as answer:
            assert answer.status == 405


async def test_jobs_are_listed_newest_first_by_pages(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        ids = [(await world.submit(name=f"job-{n}"))["id"] for n in range(5)]
        await world.settle()
        first = await world.ask("GET", "/v1/jobs?newest=true&limit=2")
        rest = await world.ask("GET", f"/v1/jobs?newest=true&limit=10&after={first['next']}")
        assert [job["id"] for job in first["jobs"] + rest["jobs"]] == ids[::-1]
        assert rest["next"] is None
