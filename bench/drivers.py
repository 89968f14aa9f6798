"""Cost of reading this node's devices: discovery, a sample, an idle agent, and a metrics scrape.

The devices are eight cards of a fake library that is built here from C (tests/drivers/nvml.c). Its
calls cost next to nothing, so the figures show the binding and this project's own code, not a
driver. Prints one JSON line per figure. QUICK=1 runs fewer.
"""

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

from bench.cluster import QUICK, children_of, cpu_of, running, say
from libs.embedded import servers
from libs.embedded.shape import LOCAL_NODE
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.machine import processes
from services.node_agent.metrics.scraping import FRESH_S
from tests.drivers.fakes import HERE, NVML, Fakes, build

GPUS = 8
DISCOVERIES = 5 if QUICK else 15
SAMPLES = 200 if QUICK else 1_000
IDLE_S = 10.0 if QUICK else 30.0
RATES_MS = (1_000, 100)
SCRAPES = 25 if QUICK else 100
# Port of the simulated node. The node with devices uses the next port.
METRICS_PORT = servers.free_port_run(2)


async def discovery_s() -> float:
    """Return the seconds until the inventory: the children begin, the libraries are loaded, each
    device is described and sampled.
    """
    driver, began = LocalDriver(), time.monotonic()
    found = await driver.inventory()
    took_s = time.monotonic() - began
    assert len(found) == GPUS
    await driver.close()
    return took_s


async def sampling() -> None:
    driver = LocalDriver()
    await driver.inventory()
    child = driver.vendors[0].process.child
    assert child is not None
    took, child_s, own_s = [], cpu_of(child.pid, children=False), time.process_time()
    for _ in range(SAMPLES):
        began = time.perf_counter()
        assert len(await driver.sample()) == GPUS
        took.append((time.perf_counter() - began) * 1_000)
    child_ms = (cpu_of(child.pid, children=False) - child_s) * 1_000 / SAMPLES
    say("sample_p50_ms", statistics.median(took), "ms", SAMPLES, gpus=GPUS)
    say("sample_p99_ms", statistics.quantiles(took, n=100)[98], "ms", SAMPLES, gpus=GPUS)
    say(
        "sample_cpu_ms",
        child_ms + (time.process_time() - own_s) * 1_000 / SAMPLES,
        "ms",
        SAMPLES,
        gpus=GPUS,
        of_the_child=round(child_ms, 3),
    )
    await driver.close()


def idle(environment: dict[str, str], every_ms: int) -> None:
    """Run a real agent with a lease, and its child processes, in a real cluster without jobs."""
    with running(
        nodes=1, gpus=1, local={**environment, "MUSTER_SAMPLE_MS": str(every_ms)}
    ) as cluster:
        agent = next(
            process.pid for name, process in cluster.processes.items() if name.endswith(LOCAL_NODE)
        )
        family = [agent, *children_of(agent)]
        began, before = time.monotonic(), sum(cpu_of(pid, children=True) for pid in family)
        time.sleep(IDLE_S)
        used_s = sum(cpu_of(pid, children=True) for pid in family) - before
        setting = {"gpus": GPUS, "every_ms": every_ms, "processes": len(family)}
        say("idle_cpu_pct", 100 * used_s / (time.monotonic() - began), "% of a core", 1, **setting)
        memory = [use.memory_bytes for pid in family if (use := processes.use(pid)) is not None]
        say("idle_memory_mib", sum(memory) / (1 << 20), "MiB", 1, **setting)
        scrapes(agent, setting)


def scrapes(agent: int, setting: dict[str, int]) -> None:
    """Time scrapes that are far enough apart for the agent to build each answer again."""
    took, size, before_s = [], 0, cpu_of(agent, children=False)
    for _ in range(SCRAPES):
        time.sleep(2 * FRESH_S)
        began = time.perf_counter()
        with urlopen(f"http://127.0.0.1:{METRICS_PORT + 1}/metrics", timeout=IDLE_S) as answer:
            size = len(answer.read())
        took.append((time.perf_counter() - began) * 1_000)
    idle_s = SCRAPES * 2 * FRESH_S
    say("scrape_p50_ms", statistics.median(took), "ms", SCRAPES, bytes=size, **setting)
    say(
        "scraped_cpu_pct",
        100 * (cpu_of(agent, children=False) - before_s) / idle_s,
        "% of a core",
        SCRAPES,
        per_s=1 / (2 * FRESH_S),
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder), NVML, HERE / "nvml.c")
        Fakes(Path(folder)).tell("nvidia", f"count * {GPUS}", "links * 18", "switch * 1")
        environment = {"LD_LIBRARY_PATH": str(library.parent), "FAKE_DRIVERS": folder}
        os.environ["MUSTER_METRICS_PORT"] = str(METRICS_PORT)
        os.environ.update(environment)
        took = [asyncio.run(discovery_s()) for _ in range(DISCOVERIES)]
        say(
            "discovery_s",
            statistics.median(took),
            "s",
            DISCOVERIES,
            gpus=GPUS,
            longest=round(max(took), 3),
        )
        asyncio.run(sampling())
        for every_ms in RATES_MS:
            idle(environment, every_ms)


if __name__ == "__main__":
    main()
