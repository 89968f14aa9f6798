"""A real embedded cluster in its own directory, started as by `muster up`, with the queries of its
gateway.

The launcher is a child that dies with this process. Every pid comes from the launcher's run.json
and counts only together with its start time. This run therefore signals only processes that it
started.
"""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

from libs.cli import archive_process
from libs.common.errors import Corrupt
from libs.embedded import runfile, servers
from libs.embedded.living import Ticket, die_with_parent, is_living

READY_S: Final = 60.0
ASK_S: Final = 15.0
ANSWER_S: Final = 60.0
STOP_S: Final = 60.0
ARCHIVED_S: Final = 60.0
AGAIN_S: Final = 0.2


class Chaos:
    """One running cluster: `session` speaks to its first gateway, `urls` are all of them."""

    def __init__(
        self,
        folder: Path,
        session: aiohttp.ClientSession,
        nodes: int,
        gpus: int,
        urls: tuple[str, ...],
    ) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.lives = folder / "lives"
        self.session = session
        self.nodes = nodes
        self.gpus = gpus
        self.urls = urls

    def ticket(self, name: str) -> Ticket | None:
        """Return the living process of that name, as the launcher records it now."""
        try:
            found = runfile.read(self.state)
        except Corrupt:
            return None
        known = found.children.get(name) if found is not None else None
        return known if known is not None and is_living(known) else None

    async def try_once(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        """Return status and body; status is 0 if the answer was lost."""
        try:
            async with self.session.request(method, path, **more) as answer:
                return answer.status, await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return 0, repr(error)

    async def get(self, path: str, **query: str) -> Any:
        """Return the body of a read, repeated until it is answered. Raises TimeoutError."""
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            status, body = await self.try_once("GET", path, params=query)
            if status == 200:
                return body
            await asyncio.sleep(AGAIN_S)
        raise TimeoutError(
            f"GET {path} was not answered within {ANSWER_S:.0f} s, last: {status} {body}"
        )

    async def named(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.get("/v1/jobs", all="true", name=name))["jobs"]
        return found

    async def jobs(self) -> dict[str, dict[str, Any]]:
        """Return all jobs by id."""
        found: dict[str, dict[str, Any]] = {}
        after: int | None = 0
        while after is not None:
            page = await self.get("/v1/jobs", all="true", limit="1000", after=str(after))
            found |= {job["id"]: job for job in page["jobs"]}
            after = page["next"]
        return found

    async def history(self, job_id: str) -> list[dict[str, Any]]:
        """Return the job's facts in the log's order."""
        return [
            row["fact"]
            for row in (await self.get(f"/v1/jobs/{job_id}/history", limit="1000"))["facts"]
        ]

    async def archived(self) -> None:
        """Wait until the archive holds all that the gateway has seen. Raises TimeoutError."""
        target, deadline = (await self.get("/v1/cluster"))["seq"], time.monotonic() + ARCHIVED_S
        while archive_head(self.state / archive_process.ARCHIVE / "audit.db") < target:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the archive was not at {target} within {ARCHIVED_S:.0f} s")
            await asyncio.sleep(AGAIN_S)

    def verify(self) -> tuple[int, str]:
        """Run `services.audit verify` on this archive and log; return exit code and output."""
        shape = json.loads((self.state / "cluster.json").read_text())
        told = {
            "MUSTER_STATE": str(self.state / archive_process.ARCHIVE),
            "MUSTER_NATS": f"nats://127.0.0.1:{shape['nats_port']}",
            "MUSTER_NKEY_SEED_FILE": str(self.state / archive_process.SEED),
        }
        line = [sys.executable, "-m", "services.audit", "verify"]
        done = subprocess.run(
            line,
            env={**os.environ, **told},
            capture_output=True,
            text=True,
            check=False,
            timeout=ANSWER_S,
        )
        return done.returncode, (done.stdout + done.stderr).strip()


def archive_head(path: Path) -> int:
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            return int(database.execute("select coalesce(max(seq), 0) from commits").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


@asynccontextmanager
async def running(
    folder: Path,
    nodes: int,
    gpus: int,
    gateways: int = 1,
    code: Path | None = None,
    **settings: str,
) -> AsyncIterator[Chaos]:
    """A cluster whose every node is healthy, stopped with the block.

    `settings` are MUSTER_* for its first start; its programs are those below `code`, by that name,
    else these.
    """
    port = servers.free_port_run(gateways)
    flags = {
        "state": folder / "state",
        "port": port,
        "gateways": gateways,
        "nodes": nodes,
        "gpus": gpus,
    }
    launcher = _launch(folder, flags, settings, code)
    try:
        key = await _key(folder / "profile.json")
        timeout = aiohttp.ClientTimeout(total=ASK_S)
        headers = {"Authorization": f"Bearer {key}"}
        urls = tuple(f"http://127.0.0.1:{port + number}" for number in range(gateways))
        async with aiohttp.ClientSession(urls[0], headers=headers, timeout=timeout) as session:
            chaos = Chaos(folder=folder, session=session, nodes=nodes, gpus=gpus, urls=urls)
            await healthy(chaos)
            yield chaos
    finally:
        _stop(launcher)


def _launch(
    folder: Path, flags: Mapping[str, object], settings: Mapping[str, str], code: Path | None
) -> "subprocess.Popen[bytes]":
    folder.mkdir(parents=True, exist_ok=True)
    # Clusters that run beside each other would take the default port of gRPC from each other.
    found = {"MUSTER_GATEWAY_GRPC_PORT": "0"} if code is None else {"PYTHONPATH": str(code)}
    told = {**os.environ, **found, **settings, "MUSTER_PROFILE": str(folder / "profile.json")}
    line = [
        sys.executable,
        "-m",
        "libs.embedded",
        "up",
        *(text for name, value in flags.items() for text in (f"--{name}", str(value))),
    ]
    with (folder / "launcher.log").open("ab") as log:
        place = folder if code is not None else None  # where it is begun, Python looks first
        return subprocess.Popen(
            line,
            env=told,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent(),
        )


async def _key(profile: Path) -> str:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError):
            return _key_in(profile)
        await asyncio.sleep(AGAIN_S)
    raise TimeoutError(f"the launcher wrote no {profile} within {READY_S:.0f} s")


def _key_in(profile: Path) -> str:
    return str(json.loads(profile.read_text())["key"])


async def healthy(chaos: Chaos) -> None:
    """Wait until each gateway answers that every node is healthy. Raises TimeoutError."""
    deadline = time.monotonic() + READY_S
    states: list[str] = []
    while time.monotonic() < deadline:
        seen = [await chaos.get(f"{url}/v1/nodes") for url in chaos.urls]
        states = [node["state"] for each in seen for node in each["nodes"]]
        if states == ["healthy"] * chaos.nodes * len(chaos.urls):
            return
        await asyncio.sleep(AGAIN_S)
    raise TimeoutError(f"the nodes are {states} after {READY_S:.0f} s")


def _stop(launcher: "subprocess.Popen[bytes]") -> None:
    launcher.send_signal(signal.SIGTERM)
    try:
        launcher.wait(STOP_S)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()
