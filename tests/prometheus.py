"""A real Prometheus for tests, from Debian's package `prometheus` or MUSTER_TEST_PROMETHEUS.

Tests skip with a message where it is not installed.
"""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml

from libs.embedded import servers

READY_S: Final = 30.0
ASK_S: Final = 10.0
STOP_S: Final = 15.0
AGAIN_S: Final = 0.1
SCRAPED_EVERY: Final = "1s"


def binary(name: str) -> str:
    """Return the path of `prometheus` or `promtool`; skip the test if it is not installed."""
    folder = os.environ.get("MUSTER_TEST_PROMETHEUS", "")
    found = shutil.which(name, path=folder or None)
    if found is None:
        pytest.skip(
            f"{name} is not installed (Debian, Ubuntu: apt install prometheus; or "
            "MUSTER_TEST_PROMETHEUS=FOLDER)"
        )
    return found


class Prometheus:
    """A running Prometheus."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def get(self, path: str, **query: str) -> Any:
        """Return the data of an answer. Raises AssertionError with the error's text."""
        async with self.session.get(self.url + path, params=query) as answer:
            body = await answer.json()
            assert body["status"] == "success", f"{path} {query}: {body.get('error')}"
            return body["data"]

    async def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.get("/api/v1/query", query=expression))["result"]
        return found

    async def firing(self) -> set[str]:
        """Return the names of the alerts that fire now."""
        alerts = (await self.get("/api/v1/alerts"))["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}


@asynccontextmanager
async def prometheus(
    folder: Path, jobs: Sequence[Mapping[str, Any]], rules: Sequence[Path] = ()
) -> AsyncIterator[Prometheus]:
    """Run a Prometheus that scrapes these jobs every second, and evaluates as often."""
    program = binary("prometheus")
    config = {
        "global": {"scrape_interval": SCRAPED_EVERY, "evaluation_interval": SCRAPED_EVERY},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": list(jobs),
    }
    (port,) = servers.free_ports(1)
    line = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    running = _started(line, folder, yaml.safe_dump(config))
    try:
        timeout = aiohttp.ClientTimeout(total=ASK_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            found = Prometheus(session, f"http://127.0.0.1:{port}")
            await _ready(found, running, folder)
            yield found
    finally:
        running.terminate()
        try:
            await asyncio.to_thread(running.wait, STOP_S)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _started(line: Sequence[str], folder: Path, config: str) -> "subprocess.Popen[bytes]":
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(config)
    with (folder / "prometheus.log").open("ab") as log:
        return subprocess.Popen(line, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


async def _ready(found: Prometheus, running: "subprocess.Popen[bytes]", folder: Path) -> None:
    async with asyncio.timeout(READY_S):
        while True:
            assert running.poll() is None, (folder / "prometheus.log").read_text()
            try:
                async with found.session.get(found.url + "/-/ready") as answer:
                    if answer.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass
            await asyncio.sleep(AGAIN_S)
