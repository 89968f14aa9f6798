"""What must hold when all faults are over: all rules, on the clients' history, the jobs' own
records, the log, the archive and both gateways.

The log is read and folded here once more; both gateways must show what that fold shows.
"""

import asyncio
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
import msgspec

from libs.common import fold, reading
from libs.common.facts import Commit
from libs.common.state.cluster import Cluster
from libs.common.transport import connection_nats, log_jetstream
from libs.embedded import identity, permissions
from services.api_gateway.views.jobs import job_shown
from services.api_gateway.views.nodes import gpu_shown
from services.audit.chain.verify import until_now
from tests.chaos import checks
from tests.chaos.cluster import archive_head
from tests.chaos.machines import clients, history_checks, spans
from tests.chaos.machines.clients import Clients
from tests.chaos.machines.hosts import AGAIN_S, GPUS, NODES, Hosts, get, healthy

# The queue of a long run lasts minutes; a job must end at least so often until none is left.
ONE_ENDS_S: Final = 120.0
ARCHIVED_S: Final = 60.0
VERIFY_S: Final = 120.0


class Judgement(msgspec.Struct):
    """`wrong` are the violations, `requeues` the reasons of requeues."""

    wrong: list[str]
    jobs: int
    requeues: Counter[str]


async def judge(
    hosts: Hosts, asking: aiohttp.ClientSession, found: Clients, limits: Mapping[str, int]
) -> Judgement:
    """Wait until all is quiet, and check every rule. Raises TimeoutError if the cluster does not
    recover.
    """
    await healthy(hosts, asking)
    url = next(iter(hosts.urls.values()))
    late = await _all_ended(asking, url)
    late += await _archived(hosts, asking, url)
    views = {name: await _view(asking, each) for name, each in hosts.urls.items()}
    cluster, commits = await _folded(hosts)
    jobs = await clients.jobs(asking, url)
    seen = spans.read(hosts.lives.read_text().splitlines()) if hosts.lives.exists() else {}
    facts = _facts_of(commits)
    kinds = {job_id: [kind for kind, _ in facts[job_id]] for job_id in jobs}
    wrong = [
        *late,
        *_on_ends(jobs, found.wishes, seen),
        *checks.on_lives(jobs, kinds, spans.lives(seen)),
        *history_checks.on_history(found.history.operations, jobs, seen),
        *history_checks.no_rank_started_twice(seen),
        *history_checks.no_two_jobs_on_a_gpu(seen),
        *history_checks.quotas_are_held(seen, limits),
        *history_checks.views_agree({"the log's fold": _view_of(cluster, views), **views}),
        *checks.every_gpu_is_free(views_gpus(views), len(NODES) * GPUS),
        *[f"{name} has given up and asks for a person" for name in hosts.given_up],
        *await asyncio.to_thread(_chain, hosts),
    ]
    requeues = Counter(
        reason for found in facts.values() for kind, reason in found if kind == "job.requeued"
    )
    return Judgement(wrong=wrong, jobs=len(jobs), requeues=requeues)


async def _all_ended(asking: aiohttp.ClientSession, url: str) -> list[str]:
    """Wait for the end of every job; return the names of jobs that no longer go on."""
    deadline, least, left = time.monotonic() + ONE_ENDS_S, sys.maxsize, ["?"]
    while left and time.monotonic() < deadline:
        left = [
            f"{each['id']} ({each['name']}) is still {each['state']} ({each['reason']})"
            for each in (await clients.jobs(asking, url)).values()
            if each["state"] not in checks.ENDED
        ]
        if len(left) < least:
            deadline, least = time.monotonic() + ONE_ENDS_S, len(left)
        await asyncio.sleep(AGAIN_S)
    return left


async def _archived(hosts: Hosts, asking: aiohttp.ClientSession, url: str) -> list[str]:
    """Wait until the archive holds all that the gateway has seen; say so if it does not."""
    target = (await get(asking, f"{url}/v1/cluster"))["seq"]
    path = hosts.folder / "volumes" / "audit" / "audit.db"
    deadline = time.monotonic() + ARCHIVED_S
    while archive_head(path) < target:
        if time.monotonic() > deadline:
            return [f"the archive was not at {target} within {ARCHIVED_S:.0f} s"]
        await asyncio.sleep(AGAIN_S)
    return []


async def _view(asking: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    gpus = (await get(asking, f"{url}/v1/gpus", limit="1000"))["gpus"]
    return {
        "jobs": await clients.jobs(asking, url),
        "gpus": {gpu["uuid"]: gpu for gpu in gpus},
    }


def views_gpus(views: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return list(next(iter(views.values()))["gpus"].values())


def _view_of(cluster: Cluster, views: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a gateway with this state must show, with the fields that the lists have."""
    some = next(iter(views.values()))
    return {
        "jobs": _plain(
            {key: job_shown(cluster, job) for key, job in cluster.jobs.items()}, some["jobs"]
        ),
        "gpus": _plain(
            {key: gpu_shown(cluster, gpu) for key, gpu in cluster.gpus.items()}, some["gpus"]
        ),
    }


def _plain(shown: Mapping[Any, Any], like: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(shown))
    return {
        key: {name: value for name, value in row.items() if key not in like or name in like[key]}
        for key, row in found.items()
    }


async def _folded(hosts: Hosts) -> tuple[Cluster, list[Commit]]:
    """Read the log from its begin; return its fold and all commits."""
    told = hosts.environment("audit")
    client = await connection_nats.connect(
        told["MUSTER_NATS"].split(","),
        permissions.AUDIT_VERIFY,
        identity.seed_file(hosts.keys, permissions.AUDIT).read_bytes().strip(),
        told["MUSTER_NATS_CA_FILE"],
    )
    cluster, commits = Cluster(), list[Commit]()
    try:
        async for batch in until_now(log_jetstream.JetStreamLog(client), 0):
            for entry in batch:
                commit = reading.read(cluster.writers, entry.subject, entry.data)
                fold.apply_entry(cluster, entry.seq, entry.subject, commit)
                commits.append(commit)
    finally:
        await client.close()
    return cluster, commits


def _facts_of(commits: Sequence[Commit]) -> dict[str, list[tuple[str, str]]]:
    """Return kind and reason of each job's facts, in the log's order."""
    found = defaultdict(list)
    for commit in commits:
        for fact in commit.facts:
            kind = str(fact.__struct_config__.tag)
            found[str(getattr(fact, "job_id", ""))].append((kind, str(getattr(fact, "reason", ""))))
    return found


def _on_ends(
    jobs: history_checks.Jobs, wishes: Mapping[str, clients.Wish], seen: history_checks.Spans
) -> list[str]:
    """Every job ended as it may, and each rank of a completed one wrote its end once."""
    wrong = []
    for job_id, job in jobs.items():
        wish = wishes.get(str(job["name"]))
        if wish is None:
            continue
        if job["state"] not in wish.expected:
            wrong.append(
                f"{job_id} ({wish.name}) is {job['state']} ({job['reason']}), and should be "
                f"{' or '.join(wish.expected)}"
            )
        if job["state"] == "completed":
            keys = [(job_id, int(job["attempt"]), rank) for rank in range(wish.nodes)]
            wrong += [
                f"{job_id} is completed, and rank {key[2]} of attempt {key[1]} did not write its "
                "end once"
                for key in keys
                if key not in seen or seen[key].ends != 1
            ]
    return wrong


def _chain(hosts: Hosts) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "services.audit", "verify"],
        env=hosts.environment("audit"),
        capture_output=True,
        text=True,
        check=False,
        timeout=VERIFY_S,
    )
    said = (done.stdout + done.stderr).strip()
    compared = "not compared" not in said
    return [] if done.returncode == 0 and compared else [f"audit verify: {done.returncode} {said}"]
