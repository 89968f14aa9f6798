"""GET /v1/ws of a real cluster: a real job's output, its states and its device on the map, over a
gateway that is killed and started again by its launcher.
"""

import asyncio
import os
import signal
from base64 import b64decode
from pathlib import Path
from typing import Any, Final

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.chaos.cluster import Chaos, running
from tests.integration.ws_world import Socket

LINES: Final = 60
# The last line is printed once the file exists.
SCRIPT: Final = f"""
for i in $(seq {LINES - 1}); do echo line $i; sleep 0.05; done
while ! test -e "$0"; do sleep 0.05; done
echo line {LINES}
"""
EXPECTED: Final = "".join(f"line {number}\n" for number in range(1, LINES + 1)).encode()
WITHIN_S: Final = 60.0


class Page:
    """A page that follows a job, and connects again when the gateway goes away."""

    def __init__(self, cluster: Chaos, job_id: str) -> None:
        self.cluster = cluster
        self.job_id = job_id
        self.output = b""
        self.states: list[str] = []
        self.devices: list[str] = []
        self.seqs: dict[str, int] = {}
        self.ended = False
        self.connections = 0

    async def follow(self) -> None:
        headers = {"Authorization": self.cluster.session.headers["Authorization"]}
        address = self.cluster.urls[0].replace("http", "ws", 1) + "/v1/ws"
        async with connect(address, additional_headers=headers, close_timeout=1) as connection:
            self.connections += 1
            client = Socket(connection)
            await client.subscribe("out", "logs", job=self.job_id, offset=len(self.output))
            await client.subscribe("job", "jobs", self.seqs.get("job"), ids=[self.job_id])
            await client.subscribe("map", "fleet", self.seqs.get("map"))
            while not (self.ended and self.states[-1:] == ["completed"]):
                self.take(await client.next())

    def take(self, frame: dict[str, Any]) -> None:
        name, event, data = frame["id"], frame["event"], frame["data"]
        assert event != "error", frame
        self.seqs[name] = frame["seq"]
        if event == "log":
            assert data["offset"] == len(self.output), "bytes are missing or come twice"
            self.output += b64decode(data["data"])
        elif event == "end":
            self.ended = True
        elif event == "job":
            self.states.append(data["state"])
        elif (name, event) == ("map", "snapshot"):
            for node in data["nodes"]:
                self.devices += [gpu["state"] for gpu in node["gpus"] if gpu["holders"]]
        elif event == "fleet":
            self.devices += [gpu["state"] for gpu in data["gpus"] if gpu["holders"]]

    async def follow_on(self) -> None:
        """Follow to the job's end, over as many connections as it takes."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    await self.follow()
                except (ConnectionClosed, InvalidStatus, OSError):
                    await asyncio.sleep(0.2)
                else:
                    return


async def test_a_real_job_is_followed_over_a_gateway_that_is_killed(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=1, gpus=2) as cluster:
        killed = tmp_path / "killed"
        body = {"command": ["sh", "-c", SCRIPT, str(killed)], "gpus": 1}
        status, job = await cluster.try_once("POST", "/v1/jobs", json=body)
        assert status == 201, job
        page = Page(cluster, job["id"])
        following = asyncio.create_task(page.follow_on())
        async with asyncio.timeout(WITHIN_S):
            while len(page.output) < 100 or "IN_USE" not in page.devices:
                assert not following.done(), following.exception()
                await asyncio.sleep(0.05)
        gateway = cluster.ticket("gateway")
        assert gateway is not None
        os.kill(gateway.pid, signal.SIGKILL)
        killed.touch()
        await following
        assert page.connections >= 2
        assert page.output == EXPECTED
        assert page.states[-1] == "completed"
