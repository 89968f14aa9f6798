"""Ten thousand clients that send slowly or nothing: they are refused or bounded, and another tenant
is served.

Three in five of the clients have no key. The gateway begins with the soft limit of 1,024 open
files that is usual, and raises it. A machine whose hard limit is lower gets fewer clients; the test
prints how many it reached, and the times of the other tenant beside those in calm.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from libs.embedded.living import die_with_parent
from tests.attack.serving_world import GREEDY, IN_MAKE_ATTACK, Serving, serving, with_files
from tests.integration.gateway_world import KEY, gateway_world
from tests.tidy import ROOT

CLIENTS: Final = 10_000
CALM_S: Final = 4.0
FLOOD_S: Final = 8.0
REACHED_S: Final = 45.0
BACKEND: Final = ROOT / "bench" / "model_backend.py"
# A slow request is over after this time, and its connection after LINGER_S more.
BOUNDS: Final = {
    "MUSTER_GATEWAY_HEAD_MS": "20000",
    "MUSTER_MODEL_BODY_MS": "20000",
    "MUSTER_MODEL_REQUESTS_MAX": str(CLIENTS // 10),
}
OVER_S: Final = 60.0
MEMORY_MIB: Final = 1_024
FILES_LEFT: Final = 100


@asynccontextmanager
async def flooded(world: Serving, lines: list[dict[str, int]]) -> AsyncIterator[None]:
    """Run the clients until the end of the block; `lines` get what they reach."""
    port, key = str(world.port), world.keys[GREEDY]
    line = [sys.executable, "-m", "tests.attack.slow_clients", port, key, str(CLIENTS)]
    process = await asyncio.create_subprocess_exec(
        *line, stdout=subprocess.PIPE, preexec_fn=die_with_parent(), cwd=ROOT
    )

    async def read() -> None:
        assert process.stdout is not None
        async for text in process.stdout:
            lines.append(json.loads(text))

    reading = asyncio.create_task(read())
    try:
        yield
    finally:
        process.kill()
        await process.wait()
        await reading


async def reached(world: Serving) -> None:
    """Wait until the gateway has accepted nearly all clients, or accepts no more."""
    best, since_s, loop = 0, 0.0, asyncio.get_running_loop()
    until_s = loop.time() + REACHED_S
    while best < CLIENTS * 9 // 10 and loop.time() < until_s:
        found = world.files()
        if found > best:
            best, since_s = found, loop.time()
        elif best and loop.time() - since_s > 8.0:
            return
        await asyncio.sleep(0.2)


@IN_MAKE_ATTACK
async def test_ten_thousand_slow_clients_are_bounded_and_another_tenant_is_served(
    tmp_path: Path,
) -> None:
    lines: list[dict[str, int]] = []
    async with serving(tmp_path, BACKEND, **BOUNDS) as world:
        pid, files = world.pid(), world.files()
        calm = await world.asked(CALM_S)
        async with flooded(world, lines):
            await reached(world)
            cpu_s = world.cpu_s()
            under = await world.asked(FLOOD_S)
            cpu_s = world.cpu_s() - cpu_s
            memory_mib, most = world.memory_mib(), max(each["open"] for each in lines)
            files_then = world.files()
        async with asyncio.timeout(OVER_S):
            while world.files() > files + FILES_LEFT:
                await asyncio.sleep(0.2)
        print(f"\n{most} clients at once, answers and ends: {lines[-1]}")
        print(f"calm: {calm.shown()}\nflooded: {under.shown()}")
        print(f"gateway: {memory_mib:.0f} MiB, {files_then} files, {cpu_s:.1f} s of a processor")
        assert not calm.failed and not under.failed, under.failed[:5]
        assert under.times_s and world.pid() == pid
        assert memory_mib < MEMORY_MIB
        assert lines[-1].get("401", 0) and lines[-1].get("429", 0), lines[-1]


async def test_connections_that_wait_give_way_to_new_ones_and_those_with_a_request_stay(
    tmp_path: Path,
) -> None:
    opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    async with AsyncExitStack() as stack:
        with with_files(256):
            world = await stack.enter_async_context(gateway_world(tmp_path))
        port = int(world.url.rsplit(":", 1)[1])

        async def connect(text: str = "") -> Any:
            opened.append(await asyncio.open_connection("127.0.0.1", port))
            opened[-1][1].write(text.encode())
            return opened[-1]

        head = f"GET /v1/watch HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n\r\n"
        watching, _ = await connect(head)
        assert (await watching.readline()).startswith(b"HTTP/1.1 200")
        first, _ = await connect()
        for _ in range(150):
            await connect("GET /livez HTTP/1.1\r\nx-")
        async with asyncio.timeout(5.0):
            assert await first.read() == b""
            await world.ask("GET", "/livez")
        assert not watching.at_eof()
        for _, writer in opened:
            writer.transport.abort()
