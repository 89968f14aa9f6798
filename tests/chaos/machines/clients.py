"""Clients of both gateways: they submit, cancel and read jobs while hosts fail, and record every
operation.

Every second job has an Idempotency-Key and is repeated until its answer is known; the others are
submitted once, whatever becomes of the answer.
"""

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from tests.chaos.machines.history import CANCEL, CLUSTER, READ, SUBMIT, History, Operation
from tests.chaos.machines.hosts import AGAIN_S, Hosts, ask, get

SCRIPT: Final = Path(__file__).with_name("job.py")
EVERY_S: Final = (0.5, 1.5)
TRIES_MAX: Final = 200
READ_EVERY_S: Final = 0.5
# The GPUs that each tenant may use at a time.
LIMITS: Final = {"red": 6, "blue": 9}
ALWAYS: Final = 1_000_000
SAID_CHARS: Final = 200


class Wish(msgspec.Struct, frozen=True):
    """One job: its first `failures` attempts exit with 3. `expected` are its possible ends."""

    name: str
    tenant: str
    seconds: float
    gpus: int = 1
    nodes: int = 1
    failures: int = 0
    retries: int = 0
    keyed: bool = False
    cancel_after_s: float = 0.0

    @property
    def expected(self) -> tuple[str, ...]:
        if self.cancel_after_s:
            return ("completed", "failed", "cancelled")
        return ("failed",) if self.failures > self.retries else ("completed",)


def wish(number: int, chance: random.Random) -> Wish:
    """Return the job of that number: mostly short ones; gangs, long ones, failures and
    cancellations among them.
    """
    gang = number % 9 == 4
    long = number % 13 == 6
    failing = number % 20 == 7
    again = int(number % 10 == 3)
    return Wish(
        name=f"machine-{number:05}",
        tenant=chance.choice(list(LIMITS)),
        seconds=round(chance.uniform(15.0, 40.0) if long else chance.uniform(0.3, 5.0), 2),
        gpus=1 if gang or long else chance.choice((1, 1, 1, 2, 4)),
        nodes=2 if gang else 1,
        failures=ALWAYS if failing else again,
        retries=1 if failing else again,
        keyed=number % 2 == 0,
        cancel_after_s=round(chance.uniform(0.5, 8.0), 2) if number % 11 == 5 else 0.0,
    )


class Clients:
    """`wishes` are the submitted jobs by name, `sessions` the connections by tenant."""

    def __init__(
        self,
        hosts: Hosts,
        history: History,
        sessions: dict[str, aiohttp.ClientSession],
        seed: int,
    ) -> None:
        self.hosts, self.history, self.sessions = hosts, history, sessions
        self.chance = random.Random(f"{seed} clients")
        self.wishes: dict[str, Wish] = {}
        self.known: list[tuple[str, str]] = []
        self.over = False

    async def run(self, length_s: float) -> None:
        """Submit and read for that time; return when every submission has ended."""
        reading = [asyncio.create_task(self._read(name)) for name in self.hosts.urls]
        deadline = time.monotonic() + length_s
        async with asyncio.TaskGroup() as submitting:
            while time.monotonic() < deadline:
                made = wish(len(self.wishes), self.chance)
                self.wishes[made.name] = made
                submitting.create_task(self._submit(made))
                await asyncio.sleep(self.chance.uniform(*EVERY_S))
        self.over = True
        await asyncio.gather(*reading)

    async def _submit(self, made: Wish) -> None:
        for _ in range(TRIES_MAX if made.keyed else 1):
            gateway = self.chance.choice(list(self.hosts.urls))
            found = await self._submit_once(made, gateway)
            if not found.unknown:
                break
            await asyncio.sleep(AGAIN_S)
        if found.accepted and made.cancel_after_s:
            await asyncio.sleep(made.cancel_after_s)
            await self._cancel(made, found.job_id)

    async def _submit_once(self, made: Wish, gateway: str) -> Operation:
        key = made.name if made.keyed else ""
        headers = {"Idempotency-Key": key} if key else {}
        began_ns = time.monotonic_ns()
        status, body = await ask(
            self.sessions[made.tenant],
            "POST",
            f"{self.hosts.urls[gateway]}/v1/jobs",
            json=self._body(made),
            headers=headers,
        )
        found = Operation(
            kind=SUBMIT,
            gateway=gateway,
            began_ns=began_ns,
            ended_ns=time.monotonic_ns(),
            status=status,
            name=made.name,
            key=key,
            **_answer(status, body),
        )
        self.history.add(found)
        if found.accepted:
            self.known.append((made.tenant, found.job_id))
        return found

    def _body(self, made: Wish) -> dict[str, Any]:
        words = [str(self.hosts.lives), str(made.seconds), str(made.failures)]
        return {
            "name": made.name,
            "command": [sys.executable, "-S", str(SCRIPT), *words],
            "gpus": made.gpus,
            "nodes": made.nodes,
            "retries": made.retries,
        }

    async def _cancel(self, made: Wish, job_id: str) -> None:
        for _ in range(TRIES_MAX):
            gateway = self.chance.choice(list(self.hosts.urls))
            url = f"{self.hosts.urls[gateway]}/v1/jobs/{job_id}/cancel"
            began_ns = time.monotonic_ns()
            status, body = await ask(self.sessions[made.tenant], "POST", url)
            told = {**_answer(status, body), "job_id": job_id}
            found = Operation(
                kind=CANCEL,
                gateway=gateway,
                began_ns=began_ns,
                ended_ns=time.monotonic_ns(),
                status=status,
                name=made.name,
                **told,
            )
            self.history.add(found)
            # A gateway that has not folded the submission yet does not know the job.
            if not found.unknown and status != 404:
                return
            await asyncio.sleep(AGAIN_S)

    async def _read(self, gateway: str) -> None:
        """Read the gateway's sequence and one known job, again and again."""
        url = self.hosts.urls[gateway]
        session = next(iter(self.sessions.values()))
        while not self.over:
            began_ns = time.monotonic_ns()
            status, body = await ask(session, "GET", f"{url}/v1/cluster")
            self._add_read(CLUSTER, gateway, began_ns, status, body)
            if self.known:
                tenant, job_id = self.chance.choice(self.known[-60:])
                began_ns = time.monotonic_ns()
                status, body = await ask(self.sessions[tenant], "GET", f"{url}/v1/jobs/{job_id}")
                self._add_read(READ, gateway, began_ns, status, body, job_id)
            await asyncio.sleep(READ_EVERY_S)

    def _add_read(
        self, kind: str, gateway: str, began_ns: int, status: int, body: Any, job_id: str = ""
    ) -> None:
        told = _answer(status, body)
        self.history.add(
            Operation(
                kind=kind,
                gateway=gateway,
                began_ns=began_ns,
                ended_ns=time.monotonic_ns(),
                status=status,
                **{**told, "job_id": job_id or told.get("job_id", "")},
            )
        )


def _answer(status: int, body: Any) -> dict[str, Any]:
    """Return what an operation keeps of an answer."""
    if not isinstance(body, dict) or not 200 <= status < 300:
        return {"said": str(body)[:SAID_CHARS]}
    return {
        "job_id": str(body.get("id", "")),
        "state": str(body.get("state", "")),
        "seq": int(body.get("seq", 0) or 0),
    }


async def tenants(hosts: Hosts, asking: aiohttp.ClientSession) -> dict[str, str]:
    """Make the tenants with their limits; return a key of each. Raises TimeoutError."""
    found = {}
    url = next(iter(hosts.urls.values()))
    for tenant, limit in LIMITS.items():
        body = {"max_gpus": limit}
        await _until(asking, "PUT", f"{url}/v1/tenants/{tenant}", body, (200, 201))
        wanted = {"user": f"user-{tenant}", "tenant": tenant, "role": "member"}
        made = await _until(asking, "POST", f"{url}/v1/keys", wanted, (201,))
        found[tenant] = str(made["key"])
    return found


async def _until(
    asking: aiohttp.ClientSession, method: str, url: str, body: object, wanted: Sequence[int]
) -> Any:
    status, said = 0, None
    for _ in range(TRIES_MAX):
        status, said = await ask(asking, method, url, json=body)
        if status in wanted:
            return said
        if 400 <= status < 500:
            break
        await asyncio.sleep(AGAIN_S)
    raise RuntimeError(f"{method} {url} was answered with {status} {said}, not with {wanted}")


async def jobs(asking: aiohttp.ClientSession, url: str) -> dict[str, dict[str, Any]]:
    """Return all jobs of the cluster by id, as that gateway shows them."""
    found: dict[str, dict[str, Any]] = {}
    after: int | None = 0
    while after is not None:
        page = await get(asking, f"{url}/v1/jobs", all="true", limit="1000", after=str(after))
        found |= {job["id"]: job for job in page["jobs"]}
        after = page["next"]
    return found
