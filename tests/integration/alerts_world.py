"""A real cluster with a real Prometheus that evaluates the alerts, and ways to wait for them.

The alerts are those of deploy/prometheus/ with shorter waits and smaller numbers of commits.
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from libs.embedded import servers
from tests.chaos.cluster import Chaos, running
from tests.prometheus import Prometheus, prometheus
from tests.tidy import ROOT

ALERTS: Final = ROOT / "deploy" / "prometheus" / "gpu-cluster-alerts.yaml"
# Every wait and range becomes short; an age and numbers of commits become small.
SHORTER: Final = (
    (re.compile(r"for: \d+[smh]"), "for: 0s"),
    (re.compile(r"\[\d+m\]"), "[15s]"),
    (re.compile(r"offset \d+m"), "offset 15s"),
    (re.compile(r"< 900"), "< 30"),
    (re.compile(r"> 5000"), "> 50"),
    (re.compile(r"> 1000"), "> 10"),
)
FIRES_S: Final = 120.0
LOOK_S: Final = 0.5
# Far longer than a whole test.
SINCE: Final = "1h"


def short_rules(folder: Path) -> Path:
    """Write the rules with short waits, and return their file."""
    text = ALERTS.read_text()
    for pattern, words in SHORTER:
        text = pattern.sub(words, text)
    path = folder / "rules.yaml"
    path.write_text(text)
    return path


def names() -> list[str]:
    """Return the names of all alerts."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"]]


class Alerts:
    """The alerts of one Prometheus; `fired` are those that a test has seen fire and clear."""

    def __init__(self, found: Prometheus) -> None:
        self.prometheus = found
        self.fired: list[str] = []

    async def fire(self, *wanted: str, within_s: float = FIRES_S) -> None:
        """Wait until each of these has fired since the beginning."""
        began = time.monotonic()
        missing = list(wanted)
        while missing:
            assert time.monotonic() - began < within_s, f"{missing} did not fire"
            await asyncio.sleep(LOOK_S)
            missing = [each for each in missing if not await self._has_fired(each)]
        print(f"{', '.join(wanted)}: fired after {time.monotonic() - began:.0f} s", flush=True)

    async def clear(self, *wanted: str, within_s: float = FIRES_S) -> None:
        """Wait until none of these fires."""
        began = time.monotonic()
        while still := set(wanted) & await self.prometheus.firing():
            assert time.monotonic() - began < within_s, f"{still} did not clear"
            await asyncio.sleep(LOOK_S)
        self.fired += wanted
        print(f"{', '.join(wanted)}: clear after {time.monotonic() - began:.0f} s", flush=True)

    async def _has_fired(self, name: str) -> bool:
        series = f'ALERTS{{alertname="{name}",alertstate="firing"}}'
        return bool(await self.prometheus.query(f"count_over_time({series}[{SINCE}])"))


class World:
    """The cluster and its alerts."""

    def __init__(self, chaos: Chaos, alerts: Alerts, key: str) -> None:
        self.chaos = chaos
        self.alerts = alerts
        self.key = key

    async def ask(self, method: str, path: str, *statuses: int, **more: Any) -> Any:
        """Return the body of an answer with one of these statuses."""
        status, body = await self.chaos.try_once(method, path, **more)
        assert status in statuses, f"{method} {path}: {status} {body}"
        return body

    async def submit(self, *command: str, **fields: Any) -> str:
        body = {"command": list(command), **fields}
        return str((await self.ask("POST", "/v1/jobs", 201, json=body))["id"])

    async def cancel(self, job_id: str) -> None:
        await self.ask("POST", f"/v1/jobs/{job_id}/cancel", 200, 202, json={"grace_s": 0})

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process of the cluster."""
        ticket = self.chaos.ticket(name)
        assert ticket is not None, name
        os.kill(ticket.pid, number)

    def hears(self, node: str, pipe: str, line: str) -> None:
        """Let an error happen on a node, as its kernel or its driver tells it."""
        with (self.chaos.state / "services" / node / pipe).open("w") as file:
            file.write(line + "\n")


@asynccontextmanager
async def alerts_world(
    folder: Path, place: Path, nodes: int, gpus: int, **settings: str
) -> AsyncIterator[World]:
    """A cluster of two gateways below `place`, which Prometheus scrapes with an operator's key, and
    its nodes.
    """
    first = servers.free_port_run(nodes)
    told = {"MUSTER_METRICS_PORT": str(first), **settings}
    async with running(place, nodes, gpus, gateways=2, **told) as chaos:
        key = str(chaos.session.headers["Authorization"]).removeprefix("Bearer ")
        gateways = [url.removeprefix("http://") for url in chaos.urls]
        agents = [f"127.0.0.1:{first + number}" for number in range(nodes)]
        jobs: list[dict[str, Any]] = [
            {
                "job_name": "muster-gateways",
                # One of them is slowed down: a scrape may take as long.
                "scrape_interval": "3s",
                "authorization": {"credentials": key},
                "static_configs": [{"targets": gateways}],
            },
            {"job_name": "muster-nodes", "static_configs": [{"targets": agents}]},
        ]
        rules = [short_rules(folder)]
        async with prometheus(folder / "prometheus", jobs, rules) as found:
            yield World(chaos, Alerts(found), key)
