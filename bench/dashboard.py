"""The dashboard in Chromium over a large cluster: 10,240 GPUs and 100,000 jobs.

`first_paint_s` is the time from the navigation until the fleet map shows its first nodes, and
`whole_fleet_s` until it shows all of them. `memory_mib` is the memory of the page's process after
some minutes of 30 changes in each second (proportional set size); `heap_mib` is JavaScript's part.
`idle_bytes_per_s` and `busy_bytes_per_s`: what the page receives and sends without changes, and
with them. `dropped_pct`: frames that the page did not draw in time at 30 changes in each second;
`dropped_blank_pct`: those of a page that shows only text, at the same changes, on the same machine.

The browser has no GPU here, so it draws with the same processors on which the gateway runs.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.cluster import QUICK, say
from libs.embedded.living import die_with_parent
from tests.browser.chromium import ASKED, chromium, lacking

NODES = 1_280
JOBS = 100_000
LOADS = 3 if QUICK else 10
MINUTES = 0.4 if QUICK else 10.0
IDLE_S = 8.0 if QUICK else 60.0
BLANK_S = 10.0 if QUICK else 60.0
UPDATES = 30
SETTING = {"gpus": NODES * 8, "jobs": JOBS}
FRAME_MS = 1_000 / 60
# Counts frames that came late, from now on.
WATCH = """() => {
  const seen = window.benchFrames = {frames: 0, dropped: 0, longest: 0};
  let last = performance.now();
  const step = now => {
    const gap = now - last;
    last = now;
    seen.frames += 1;
    seen.longest = Math.max(seen.longest, gap);
    seen.dropped += Math.max(0, Math.round(gap / (1000 / 60)) - 1);
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}"""
# Ends when the map shows so many nodes, with the time since the navigation in milliseconds.
SHOWS = """least => new Promise(resolve => {
  const look = () => {
    const said = document.querySelector('.sub')?.textContent ?? '';
    const nodes = Number((/([0-9\\u202f]+) nodes?/.exec(said)?.[1] ?? '0').replace(/\\D/g, ''));
    if (nodes >= least && document.querySelector('.map canvas')?.width) {
      requestAnimationFrame(() => resolve(performance.now()));
    } else requestAnimationFrame(look);
  };
  look();
})"""


class Server:
    """The gateway's process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        self.url, self.key = str(said["url"]), str(said["key"])

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)


@contextmanager
def server() -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.dashboard_server", str(NODES), str(JOBS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent(),
    )
    try:
        yield Server(process)
    finally:
        process.kill()
        process.wait()


class Traffic:
    """The bytes that a page receives and sends."""

    def __init__(self, session: Any) -> None:
        self.bytes = 0
        session.on("Network.dataReceived", lambda event: self._add(event["encodedDataLength"]))
        for name in ("webSocketFrameReceived", "webSocketFrameSent"):
            session.on(
                f"Network.{name}", lambda event: self._add(len(event["response"]["payloadData"]))
            )

    def _add(self, count: int) -> None:
        self.bytes += count


async def main() -> None:
    os.environ[ASKED] = "1"
    if reason := lacking():
        say("first_paint_s", None, "s", 0, skipped=reason)
        return
    with server() as gateway:
        async with chromium() as browser:
            context = await browser.new_context(viewport={"width": 1440, "height": 900})
            page = await context.new_page()
            await signed_in(page, gateway)
            await loads(page, gateway)
            await blank(page, gateway)
            await watched(context, page, gateway)


async def signed_in(page: Any, gateway: Server) -> None:
    await page.goto(gateway.url)
    await page.get_by_label("API key").fill(gateway.key)
    await page.get_by_role("button", name="Sign in", exact=True).click()
    await page.evaluate(SHOWS, NODES)


async def loads(page: Any, gateway: Server) -> None:
    """Measure how soon the map is there, with the browser's cache as it is after a first visit."""
    first, whole = [], []
    for _ in range(LOADS):
        await page.goto(gateway.url, wait_until="commit")
        first.append(await page.evaluate(SHOWS, 1) / 1_000)
        whole.append(await page.evaluate(SHOWS, NODES) / 1_000)
    say("first_paint_s", sorted(first)[LOADS // 2], "s", LOADS, **SETTING)
    say("whole_fleet_s", sorted(whole)[LOADS // 2], "s", LOADS, **SETTING)


async def blank(page: Any, gateway: Server) -> None:
    """Measure the frames that this machine drops by itself."""
    await page.goto(f"{gateway.url}/livez")
    gateway.tell(f"updates {UPDATES}")
    await page.wait_for_timeout(1_000)
    await page.evaluate(WATCH)
    await page.wait_for_timeout(BLANK_S * 1_000)
    frames = await page.evaluate("() => window.benchFrames")
    gateway.tell("quiet")
    say_dropped("dropped_blank_pct", frames, {"seconds": BLANK_S})
    await page.goto(gateway.url)
    await page.evaluate(SHOWS, NODES)


def say_dropped(figure: str, frames: dict[str, Any], setting: dict[str, Any]) -> None:
    dropped = 100 * frames["dropped"] / max(1, frames["dropped"] + frames["frames"])
    say(figure, dropped, "%", frames["frames"], longest_ms=frames["longest"], **setting)


async def watched(context: Any, page: Any, gateway: Server) -> None:
    session = await context.new_cdp_session(page)
    await session.send("Network.enable")
    traffic = Traffic(session)
    await page.wait_for_timeout(3_000)
    idle = await rate(page, traffic, IDLE_S)
    say("idle_bytes_per_s", idle, "B/s", 1, seconds=IDLE_S, **SETTING)
    gateway.tell(f"updates {UPDATES}")
    await page.wait_for_timeout(1_000)
    await page.evaluate(WATCH)
    seconds = MINUTES * 60
    busy = await rate(page, traffic, seconds)
    frames = await page.evaluate("() => window.benchFrames")
    gateway.tell("quiet")
    shown = {"updates_per_s": UPDATES, "seconds": seconds, **SETTING}
    say("busy_bytes_per_s", busy, "B/s", 1, **shown)
    say_dropped("dropped_pct", frames, shown)
    await session.send("HeapProfiler.collectGarbage")
    heap = await session.send("Runtime.getHeapUsage")
    say("memory_mib", page_bytes() / (1 << 20), "MiB", 1, minutes=MINUTES, **SETTING)
    say("heap_mib", heap["usedSize"] / (1 << 20), "MiB", 1, minutes=MINUTES, **SETTING)


async def rate(page: Any, traffic: Traffic, seconds: float) -> float:
    before, from_s = traffic.bytes, time.monotonic()
    await page.wait_for_timeout(seconds * 1_000)
    return (traffic.bytes - before) / (time.monotonic() - from_s)


def page_bytes() -> int:
    """Return the memory of the largest process of this bench that draws a page."""
    found = [0]
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"--type=renderer" in (path / "cmdline").read_bytes() and is_own(int(path.name)):
                text = (path / "smaps_rollup").read_text()
                found.append(
                    next(
                        int(line.split()[1]) << 10
                        for line in text.splitlines()
                        if line.startswith("Pss:")
                    )
                )
        except OSError:
            continue
    return max(found)


def is_own(pid: int) -> bool:
    """Return whether this process has started that one, or one of its parents."""
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return False


if __name__ == "__main__":
    asyncio.run(main())
