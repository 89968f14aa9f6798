"""Latency of a quiet tenant while another tenant attacks, beside its latency without an attack.

One embedded cluster. Quiet rounds and attack rounds take turns. An attack runs in a process of its
own, with the key of another tenant's member, at a bounded rate, on loopback. The quiet tenant runs
`date` jobs one after the other, and reads each job from the gateway. Both sides share the machine's
cores. The attacker's process yields to all others (nice 19), because a real attacker computes on a
machine of its own; its jobs do not. `nothing` sends no request: it shows how far two measurements
without an attack differ here. `plain_jobs` is no attack and shows what any submissions cost.
QUICK=1: fewer samples, so that a p99 is the greatest value. ATTACK=name: this attack only.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

import aiohttp

from bench.cluster import QUICK, Cluster, client, ended, quantile, running, say, submit

ROUNDS: Final = 1 if QUICK else 4
JOBS: Final = 8 if QUICK else 60
READS_PER_JOB: Final = 5
SETTLE_S: Final = 1.0
SETUP_S: Final = 20.0
# Time after which an attacker stops by itself if its parent does not end it.
ATTACK_S: Final = 300.0
ATTACKER_NICE: Final = 19
# A client closes an idle connection before the gateway does. Otherwise a request may meet the
# gateway's end of the connection and fail.
KEEPALIVE_S: Final = 2.0
# Starts of an attack's requests per second, and how many are open at one time.
RATE: Final = 10
FLOOD_RATE: Final = 40
OPEN_MAX: Final = 32
HELD: Final = 64
FOLLOWERS: Final = 300
CONNECTIONS: Final = 300
AIM: Final = 1.2
REFUSED_TENANT: Final = "refused"
USERS: Final = f"{REFUSED_TENANT}/*=no-such-user,*=self"
PATTERN: Final = "a_token-" * 8_000
OUTCOMES: dict[str, int] = {}

Act = Callable[[aiohttp.ClientSession], Coroutine[Any, Any, None]]


class Samples(NamedTuple):
    """Milliseconds that the quiet tenant measured."""

    started: list[float]
    read: list[float]


async def post(session: aiohttp.ClientSession, **fields: Any) -> str:
    """Submit a job and return its id; a refusal is an outcome of the attack, and
    returns nothing.
    """
    async with session.post("/v1/jobs", json=fields) as answer:
        body = await answer.json()
        OUTCOMES[str(answer.status)] = OUTCOMES.get(str(answer.status), 0) + 1
        return str(body["id"]) if answer.status == 201 else ""


async def paced(session: aiohttp.ClientSession, rate: int = RATE, **fields: Any) -> None:
    """Submit such a job `rate` times a second, for ATTACK_S at most."""
    gate = asyncio.Semaphore(OPEN_MAX)

    async def one() -> None:
        async with gate:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                await post(session, **{"command": ["true"], **fields})

    async with asyncio.TaskGroup() as tasks:
        for _ in range(int(ATTACK_S * rate)):
            tasks.create_task(one())
            await asyncio.sleep(1 / rate)


async def blocked(session: aiohttp.ClientSession) -> str:
    """Start a job that occupies one GPU; return a dependency on it, with which a job waits."""
    job = await post(session, command=["sleep", str(int(ATTACK_S))])
    assert job, f"the job that others wait for was refused: {OUTCOMES}"
    return f"afterany:{job}"


async def nothing(session: aiohttp.ClientSession) -> None:
    """Send no request."""
    print("ready", flush=True)
    await asyncio.sleep(ATTACK_S)


async def plain(session: aiohttp.ClientSession) -> None:
    """Submit small jobs that wait: no attack, but the same rate, to compare the attacks with."""
    after = [await blocked(session)]
    print("ready", flush=True)
    await paced(session, after=after)


async def patterns(session: aiohttp.ClientSession) -> None:
    """Submit text that is costly for the search for secrets, in jobs that wait."""
    after = [await blocked(session)]
    print("ready", flush=True)
    await paced(session, after=after, command=["true", PATTERN])


async def dependencies(session: aiohttp.ClientSession) -> None:
    """Submit jobs that wait, then many jobs that each depend on all of these."""
    first = await blocked(session)
    held = [await post(session, command=["true"], after=[first]) for _ in range(HELD)]
    after = [f"afterany:{job}" for job in held if job]
    print("ready", flush=True)
    await paced(session, after=after)


async def flooding(session: aiohttp.ClientSession) -> None:
    """Fill the log with large submissions of jobs that wait."""
    after = [await blocked(session)]
    print("ready", flush=True)
    await paced(session, FLOOD_RATE, after=after, env={"BIG": "x" * 60_000})


async def refused(session: aiohttp.ClientSession) -> None:
    """Submit jobs that every node refuses, because their Unix user does not exist."""
    print("ready", flush=True)
    await paced(session)


async def followers(session: aiohttp.ClientSession) -> None:
    """Follow the output of one idle job, and return at once wherever the gateway refuses."""
    job = await post(session, command=["sleep", str(int(ATTACK_S))])

    async def follow() -> None:
        async with session.get(f"/v1/jobs/{job}/output", params={"follow": "1"}) as answer:
            OUTCOMES[str(answer.status)] = OUTCOMES.get(str(answer.status), 0) + 1
            await answer.read()

    tasks = [asyncio.create_task(follow()) for _ in range(FOLLOWERS)]
    await asyncio.sleep(SETTLE_S)
    print("ready", flush=True)
    await asyncio.gather(*tasks, return_exceptions=True)


async def connections(session: aiohttp.ClientSession) -> None:
    """Send a body byte by byte on many connections, without a key."""
    host, port = os.environ["NOISY_URL"].removeprefix("http://").split(":")
    head = b"POST /v1/jobs HTTP/1.1\r\nhost: bench\r\ncontent-length: 10000\r\n\r\n"

    async def drip() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(head)
                OUTCOMES["opened"] = OUTCOMES.get("opened", 0) + 1
                while not writer.is_closing():
                    await writer.drain()
                    await asyncio.sleep(1.0)
                    writer.write(b"x")
            await asyncio.sleep(1.0)

    tasks = [asyncio.create_task(drip()) for _ in range(CONNECTIONS)]
    await asyncio.sleep(SETTLE_S)
    print("ready", flush=True)
    await asyncio.wait(tasks, timeout=ATTACK_S)


ATTACKS: Final[dict[str, Act]] = {
    "nothing": nothing,
    "plain_jobs": plain,
    "patterns": patterns,
    "dependencies": dependencies,
    "log_flooding": flooding,
    "followers": followers,
    "slow_connections": connections,
    "refused_jobs": refused,
}


async def attack(name: str) -> None:
    """Run one attack until SIGTERM, then print the outcomes of its requests."""
    os.nice(ATTACKER_NICE)
    headers = {"Authorization": f"Bearer {os.environ['NOISY_KEY']}"}
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
    async with aiohttp.ClientSession(
        os.environ["NOISY_URL"], headers=headers, connector=connector
    ) as session:
        task = asyncio.create_task(ATTACKS[name](session))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task
    print(" ".join(f"{status}:{count}" for status, count in sorted(OUTCOMES.items())), flush=True)


async def member(session: aiohttp.ClientSession, tenant: str) -> str:
    """Create a tenant and return the key of its member."""
    async with session.put(f"/v1/tenants/{tenant}", json={}) as answer:
        assert answer.status in (200, 201), await answer.text()
    body = {"user": f"user-{tenant}", "tenant": tenant, "role": "member"}
    async with session.post("/v1/keys", json=body) as answer:
        assert answer.status == 201, await answer.text()
        return str((await answer.json())["key"])


async def probe(session: aiohttp.ClientSession, found: Samples) -> None:
    """Run JOBS jobs one after the other: time from the POST to the job's own first moment, and of
    reads.
    """
    for _ in range(JOBS):
        before_ns = time.time_ns()
        job = await submit(session, "date", "+%s%N")
        await ended(session, job)
        async with session.get(f"/v1/jobs/{job}/output", params={"stream": "stdout"}) as answer:
            found.started.append((int(await answer.text()) - before_ns) / 1e6)
        for _ in range(READS_PER_JOB):
            began = time.perf_counter()
            async with session.get(f"/v1/jobs/{job}") as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
            found.read.append((time.perf_counter() - began) * 1e3)


async def attacked(
    cluster: Cluster, quiet: aiohttp.ClientSession, name: str, key: str, found: Samples
) -> str:
    """Probe while an attack runs; return the outcomes of its requests."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.noisy", name),
        env={**os.environ, "NOISY_URL": cluster.url, "NOISY_KEY": key},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SETUP_S):
            assert await process.stdout.readline() == b"ready\n", f"the attack {name} did not start"
        await asyncio.sleep(SETTLE_S)
        await probe(quiet, found)
    finally:
        process.terminate()
        outcome = (await process.communicate())[0].decode().strip()
    return outcome


async def cleared(cluster: Cluster, key: str) -> None:
    """Cancel what the attacker left, so that the next quiet round is quiet."""
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(cluster.url, headers=headers) as session:
        for _ in range(20):
            async with session.get("/v1/jobs", params={"limit": "1000"}) as answer:
                jobs = [job["id"] for job in (await answer.json())["jobs"]]
            if not jobs:
                return
            for job in jobs:
                async with session.post(f"/v1/jobs/{job}/cancel") as answer:
                    await answer.read()
            await asyncio.sleep(0.5)


def show(name: str, quiet: Samples, noisy: Samples, outcome: str) -> None:
    """Print each quantile without and with the attack, and their ratio."""
    for figure in Samples._fields:
        before, during = getattr(quiet, figure), getattr(noisy, figure)
        for label, part in (("p50", 0.5), ("p99", 0.99)):
            base, value = quantile(before, part), quantile(during, part)
            setting = {"attack": name, "attacker_answers": outcome, "aim_at_most": AIM}
            say(f"{figure}_{label}_ms", base, "ms", len(before), attack="none", beside=name)
            say(f"{figure}_{label}_ms", value, "ms", len(during), **setting)
            say(f"{figure}_{label}_ratio", value / base, "1", len(during), **setting)


async def measure(cluster: Cluster) -> None:
    async with client(cluster) as admin:
        keys = {
            tenant: await member(admin, tenant) for tenant in ("quiet", "greedy", REFUSED_TENANT)
        }
    headers = {"Authorization": f"Bearer {keys['quiet']}"}
    connector = aiohttp.TCPConnector(keepalive_timeout=KEEPALIVE_S)
    async with aiohttp.ClientSession(cluster.url, headers=headers, connector=connector) as quiet:
        await probe(quiet, Samples([], []))  # once to warm every process
        for name in [os.environ["ATTACK"]] if os.environ.get("ATTACK") else ATTACKS:
            key = keys[REFUSED_TENANT if name == "refused_jobs" else "greedy"]
            before, during, outcome = Samples([], []), Samples([], []), ""
            for _ in range(ROUNDS):
                await probe(quiet, before)
                outcome = await attacked(cluster, quiet, name=name, key=key, found=during)
                await cleared(cluster, key)
                await asyncio.sleep(SETTLE_S)
            show(name, before, during, outcome)


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(attack(sys.argv[1]))
        return
    os.environ["MUSTER_JOB_USERS"] = USERS
    with running() as cluster:
        asyncio.run(measure(cluster))


if __name__ == "__main__":
    main()
