"""Time that resident data saves: a stand-in engine becomes ready without anything, with compile
products, with weights in memory, with both; and a killed engine is replaced, with and without a
standby.

The engine is a real process: it reads all weight files, at the speed of a slow store unless the
node keeps them in memory, compiles with one processor, and answers the OpenAI protocol. A start is
timed from the request for one replica to `ready`, and a kill from the signal to the first answer
through the gateway. Clients send requests during the kills with a standby; none may fail.
"""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from bench.cluster import QUICK, client, running, say

WEIGHTS_BYTES = (64 if QUICK else 1_024) << 20
DISK_MIB_S = 32 if QUICK else 200
COMPILE_S = 2.0 if QUICK else 8.0
ROUNDS = 1 if QUICK else 3
KILLS = 2 if QUICK else 10
WAIT_S = 120.0
LOOK_S = 0.02
CLIENTS = 2
ENGINE = Path(__file__).parent.parent / "examples" / "resident_engine.py"
TALK = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SETTING = {
    "weights_mib": WEIGHTS_BYTES >> 20,
    "store_mib_s": DISK_MIB_S,
    "compile_s": COMPILE_S,
}


class Rig:
    """The session of one cluster that has the model `m` with 0 or 1 replicas."""

    def __init__(self, session: aiohttp.ClientSession, weights: Path) -> None:
        self.session, self.weights = session, weights

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        async with self.session.request(method, path, json=body) as answer:
            assert answer.status < 300, f"{method} {path}: {await answer.text()}"
            return await answer.json() if answer.status != 204 else None

    async def deploy(self) -> None:
        flags = ["--host", "127.0.0.1", "--port", "{port}", "--weights", str(self.weights)]
        flags += ["--disk-mib-s", str(DISK_MIB_S), "--compile-s", str(COMPILE_S)]
        command = [sys.executable, str(ENGINE), *flags]
        body = {"name": "m", "command": command, "replicas": 0, "health_interval_s": 1}
        await self.ask("POST", "/v1/deployments", body)

    async def start(self) -> float:
        """Begin one replica; return the seconds until it is ready."""
        began = time.perf_counter()
        await self.ask("PATCH", "/v1/deployments/m", {"replicas": 1})
        await self.until(self._is_ready)
        return time.perf_counter() - began

    async def _is_ready(self) -> bool:
        return bool((await self.ask("GET", "/v1/deployments/m"))["ready"])

    async def stop(self) -> None:
        await self.ask("PATCH", "/v1/deployments/m", {"replicas": 0})

        async def none_is_left() -> bool:
            return not (await self.ask("GET", "/v1/deployments/m"))["replicas"]

        await self.until(none_is_left)

    async def keep(self, tier: str, **body: Any) -> None:
        await self.ask("PUT", f"/v1/deployments/m/kept/{tier}", body)

    async def kept(self, tier: str) -> None:
        """Wait until the tier is ready."""

        async def is_ready() -> bool:
            found = (await self.ask("GET", "/v1/kept"))["kept"]
            entries = [each for kept in found if kept["tier"] == tier for each in kept["entries"]]
            return any(entry["state"] == "ready" for entry in entries)

        await self.until(is_ready)

    async def until(self, found: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not await found():
            assert time.monotonic() < deadline, f"{found.__name__}: not within {WAIT_S} s"
            await asyncio.sleep(LOOK_S)

    async def chat(self) -> int:
        async with self.session.post("/v1/chat/completions", json=TALK) as answer:
            await answer.read()
            return answer.status

    async def kill(self) -> float:
        """Kill the engine that serves; return the seconds until the gateway answers again."""
        shown = await self.ask("GET", "/v1/deployments/m")
        pid = await asyncio.to_thread(listener_of, int(shown["replicas"][0]["port"]))
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        while await self.chat() != 200:
            await asyncio.sleep(LOOK_S)
        return time.perf_counter() - began


def listener_of(port: int) -> int:
    """Return the process that listens on a port of this machine."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    wanted = {
        f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"
    }
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        except OSError:
            continue
        if links & wanted:
            return int(pid)
    raise AssertionError(f"no process listens on port {port}")


async def starts(rig: Rig, figure: str) -> float:
    """Time some starts; the model has no replica before and after."""
    times = []
    for _ in range(ROUNDS):
        times.append(await rig.start())
        await rig.stop()
    say(figure, median(times), "s", len(times), **SETTING)
    return median(times)


async def measure_starts(rig: Rig) -> None:
    cold = await starts(rig, "cold_ready_s")
    await rig.keep("artefact", nodes=1)
    await rig.start()  # its products are stored at its end
    await rig.stop()
    await rig.kept("artefact")
    await starts(rig, "artefact_ready_s")
    await rig.keep("host", weights=str(rig.weights), nodes=1)
    await rig.kept("host")
    both = await starts(rig, "both_ready_s")
    await rig.ask("DELETE", "/v1/deployments/m/kept/artefact")
    await starts(rig, "host_ready_s")
    say("start_speedup", cold / both, "ratio", ROUNDS, **SETTING)


async def measure_kills(rig: Rig) -> None:
    """Kill the engine without a standby, then with one under load."""
    await rig.start()
    alone = await rig.kill()
    say("killed_to_answer_alone_s", alone, "s", 1, **SETTING)
    await rig.until(rig._is_ready)
    await rig.stop()
    await rig.keep("standby", size_bytes=1 << 30)
    await rig.start()
    statuses: list[int] = []
    over = asyncio.Event()

    async def load() -> None:
        while not over.is_set():
            statuses.append(await rig.chat())

    clients = [asyncio.create_task(load()) for _ in range(CLIENTS)]
    times = []
    for _ in range(KILLS):
        await rig.kept("standby")
        times.append(1_000 * await rig.kill())
    over.set()
    await asyncio.gather(*clients)
    say("killed_to_routed_p50_ms", median(times), "ms", len(times), **SETTING)
    say("killed_to_routed_max_ms", max(times), "ms", len(times), **SETTING)
    events = (await rig.ask("GET", "/v1/events?kind=standby.promoted"))["events"]
    say("promotions", len(events), "count", len(times), **SETTING)
    lost = sum(1 for status in statuses if status != 200)
    say("lost_requests", lost, "count", len(statuses), **SETTING)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running(nodes=1) as cluster:
        os.chmod(folder, 0o755)
        weights = Path(folder) / "weights"
        weights.mkdir()
        shards = [weights / f"shard-{number}.bin" for number in range(4)]
        for shard in shards:
            await asyncio.to_thread(shard.write_bytes, os.urandom(WEIGHTS_BYTES // len(shards)))
        (weights / "index.json").write_text(str([shard.name for shard in shards]).replace("'", '"'))
        async with client(cluster) as session:
            rig = Rig(session, weights)
            await rig.deploy()
            await measure_starts(rig)
            await measure_kills(rig)


if __name__ == "__main__":
    asyncio.run(main())
