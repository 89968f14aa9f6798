"""Scrapes of a real agent over HTTP while jobs run on its devices.

Misbehaving clients of that port do not disturb the node.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from libs.common import facts as f
from libs.embedded import servers
from services.node_agent.metrics import scraping
from services.node_agent.metrics.scraping import scraped
from tests.integration.test_agent_process import Cluster, cluster  # noqa: F401  the fixture
from tests.metrics_catalogue import FILE

WAIT_S = 20.0
SPIN = "while :; do :; done"


def read(port: int) -> dict[str, Metric]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return {
            family.name: family for family in text_string_to_metric_families(answer.read().decode())
        }


async def test_a_node_says_how_its_devices_are_and_whose_job_runs_there(cluster: Cluster) -> None:  # noqa: F811
    (port,) = servers.free_ports(1)
    cluster.agent(metrics_port=port)
    await cluster.until(f.NodeRegistered)
    await cluster.start("j", SPIN, 1)
    await cluster.until(f.JobStarted)

    async def busy() -> dict[str, Metric]:
        while True:
            families = await asyncio.to_thread(read, port)
            if families["muster_gpu_busy_ratio"].samples[0].value > 0.1:
                return families
            await asyncio.sleep(0.3)

    async with asyncio.timeout(WAIT_S):
        families = await busy()
    first, second = families["muster_gpu_busy_ratio"].samples
    assert (first.labels["UUID"], first.labels["Hostname"], first.labels["hpc_job"]) == (
        "GPU-n-0",
        "n",
        "j",
    )
    assert (
        first.labels["tenant"] == "default" and "hpc_job" not in second.labels and second.value == 0
    )
    (share,) = families["muster_gpu_job_share"].samples
    assert (share.labels["hpc_job"], share.value) == ("j", 1)
    assert [one.value for one in families["muster_gpu_up"].samples] == [1, 1]
    assert "muster_gpu_temperature_celsius" not in families and not any(
        name.startswith("DCGM") for name in families
    )
    assert families["muster_node_disk_free_bytes"].samples[0].value > 0
    known = {row["name"].removesuffix("_total") for row in json.loads(FILE.read_text())}
    assert [name for name in families if name not in known] == []


@contextlib.asynccontextmanager
async def served(body: str = "x 1\n") -> AsyncIterator[int]:
    async def text() -> str:
        return body

    (port,) = servers.free_ports(1)
    async with scraped("127.0.0.1", port, text):
        yield port


async def asked(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        async with asyncio.timeout(WAIT_S):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_only_metrics_are_there() -> None:
    async with served() as port:
        assert (await asked(port, b"GET /metrics?name=x HTTP/1.1\r\nHost: n\r\n\r\n")).endswith(
            b"\r\n\r\nx 1\n"
        )
        for request in (b"GET / HTTP/1.1\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n", b"\r\n\r\n"):
            assert (await asked(port, request)).startswith(b"HTTP/1.1 404")


async def test_client_that_sends_without_end_or_nothing_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scraping, "ANSWER_S", 0.2)
    async with served() as port:
        assert await asked(port, b"GET /" + b"x" * (1 << 20)) == b""
        assert await asked(port, b"GET /metrics HTTP/1.1\r\n") == b""


async def test_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraping, "ANSWER_S", 0.2)
    async with served("x" * (64 << 20)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await asyncio.sleep(1.0)
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read()) < 64 << 20
        writer.close()


async def test_no_more_than_so_many_are_answered_at_once() -> None:
    async with served() as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(scraping.OPEN_MAX)]
        await asyncio.sleep(0.1)
        assert await asked(port, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
        held[0][1].write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (await held[0][0].read()).endswith(b"x 1\n")
        assert (await asked(port, b"GET /metrics HTTP/1.1\r\n\r\n")).endswith(b"x 1\n")
        for _, writer in held:
            writer.close()


async def test_concurrent_identical_requests_share_one_answer() -> None:
    made = 0

    async def text() -> str:
        nonlocal made
        made += 1
        return "x 1\n"

    (port,) = servers.free_ports(1)
    async with scraped("127.0.0.1", port, text):
        for _ in range(5):
            await asked(port, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert made < 5


async def test_a_port_that_is_taken_is_a_warning_and_none_is_asked_for_with_0(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async def text() -> str:
        return ""

    with socket.create_server(("127.0.0.1", 0)) as other:
        async with scraped("127.0.0.1", other.getsockname()[1], text):
            assert "MUSTER_METRICS_PORT" in caplog.text
    caplog.clear()
    async with scraped("127.0.0.1", 0, text):
        assert caplog.text == ""
