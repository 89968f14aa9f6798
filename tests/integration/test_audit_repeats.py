"""Consumers of the audit see one `job.submitted` per job, even if several gateways recorded it."""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from libs.common.state.cluster import ENDED_JOBS_KEPT
from libs.common.transport.log import Entry
from libs.common.transport.log_memory import MemoryStream
from services.audit.export.events import BEGINNING, TYPE
from services.audit.export.export import Span, lines
from services.audit.export.feed import take
from services.audit.store import repeats
from services.audit.store.store import Store
from tests.chaos.cluster import running
from tests.integration.audit_world import commit
from tests.integration.gateway_world import World, gateway_world

SUBMITTED, IGNORED = TYPE + "job.submitted", TYPE + "job.submitted.ignored"
KEYS = 60
WITHIN_S = 60.0


def submitted(job_id: str, request: str = "digest") -> dict[str, Any]:
    return {"kind": "job.submitted", "job_id": job_id, "request": request}


def submission(seq: int, *facts: dict[str, Any]) -> Entry:
    return commit(seq, *facts, subject="facts.gateway.a")


def told(store: Store) -> list[tuple[str, str, bool]]:
    """Return id, type and `ignored` of each submission; pages and exports agree on them."""
    paged = [
        msgspec.json.decode(data)
        for _, data in take(
            store=store, source="here", after=BEGINNING, count_max=1_000, bytes_max=1 << 30
        ).events
    ]
    exported = [
        msgspec.json.decode(line)
        for piece in lines(store, Span(), "here", "ndjson")
        for line in piece.splitlines()
    ]
    assert paged == exported[: len(paged)]
    return [
        (event["id"], event["type"].removeprefix(TYPE), "reason" in event["data"])
        for event in paged
        if event["type"].startswith(SUBMITTED)
    ]


def test_second_submission_of_one_key_is_recognised(store: Store) -> None:
    store.append(
        [
            submission(1, submitted("ja"), submitted("jb", "")),
            submission(2, submitted("ja"), submitted("jc"), submitted("jc")),
        ]
    )
    assert told(store) == [
        ("1-0", "job.submitted", False),
        ("1-1", "job.submitted", False),
        ("2-0", "job.submitted.ignored", True),
        ("2-1", "job.submitted", False),
        ("2-2", "job.submitted.ignored", True),
    ]


def test_repetition_is_recognised_until_the_fold_forgets_the_job(
    store: Store,
) -> None:
    def closed(job_id: str) -> dict[str, Any]:
        return {"kind": "job.closed", "job_id": job_id}

    others = [closed(f"j{number}") for number in range(ENDED_JOBS_KEPT)]
    store.append(
        [
            submission(1, submitted("ja")),
            commit(2, closed("ja")),
            submission(3, submitted("ja")),
            commit(4, *others[1:]),
        ]
    )
    store.append(
        [
            submission(5, submitted("ja")),
            commit(6, others[0]),
            submission(7, submitted("ja")),
            submission(8, submitted("ja")),
        ]
    )
    events = take(
        store=store, source="here", after=BEGINNING, count_max=1 << 20, bytes_max=1 << 30
    ).events
    kinds = {name: msgspec.json.decode(data)["type"].removeprefix(TYPE) for name, data in events}
    assert [kinds[f"{seq}-0"] for seq in (1, 3, 5, 7, 8)] == [
        "job.submitted",
        "job.submitted.ignored",
        "job.submitted.ignored",
        "job.submitted",
        "job.submitted.ignored",
    ]


def test_facts_of_a_node_make_no_submission_a_repetition(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do a node's forged ends make the fold forget a job."""
    monkeypatch.setattr(repeats, "ENDED_JOBS_KEPT", 3)

    def forged(seq: int, *facts: dict[str, Any]) -> Entry:
        return commit(seq, *facts, subject="facts.node.n1")

    ends = [{"kind": "job.closed", "job_id": f"j{number}"} for number in range(9)]
    store.append(
        [
            forged(1, submitted("ja"), submitted("ja")),
            submission(2, submitted("ja")),
            commit(3, {"kind": "job.closed", "job_id": "ja"}),
            forged(4, *ends),
            submission(5, submitted("ja")),
        ]
    )
    assert told(store) == [
        ("1-0", "job.submitted.ignored", True),
        ("1-1", "job.submitted.ignored", True),
        ("2-0", "job.submitted", False),
        ("5-0", "job.submitted.ignored", True),
    ]


async def test_event_of_a_double_submission_is_the_one_that_the_fold_kept(
    store: Store, tmp_path: Path
) -> None:
    """The second gateway hears the log late, as one that is busy does."""

    async def post(world: World, key: str) -> str:
        headers = {"idempotency-key": key}
        async with world.session.post(
            world.url + "/v1/jobs", json={"command": ["true"]}, headers=headers
        ) as response:
            return str((await response.json())["id"])

    stream = MemoryStream()
    async with (
        gateway_world(tmp_path, stream) as one,
        gateway_world(tmp_path, stream, instance="b") as two,
    ):
        for number in range(40):
            ids = await asyncio.gather(*(post(world, f"key-{number}") for world in (one, two)))
            assert len(set(ids)) == 1
        entries = [await one.log.get(seq) for seq in range(1, (await one.log.bounds())[1] + 1)]
        store.append([entry for entry in entries if entry is not None])
        kept = {job.job_id: job.seq for job in one.gateway.cluster.jobs.values()}
    found = told(store)
    assert {name.split("-")[0] for name, kind, _ in found if kind == "job.submitted"} == {
        str(seq) for seq in kept.values()
    }
    assert Counter(kind for _, kind, _ in found)["job.submitted"] == len(kept) == 40
    assert [each for each in found if each[1] != "job.submitted"], (
        "the gateways never recorded one job twice: this shows nothing"
    )


@pytest.mark.attack
async def test_audit_of_a_cluster_with_two_gateways_reports_each_job_once(tmp_path: Path) -> None:
    """Concurrent uses of each key at both gateways, over real HTTP and a real nats-server."""
    async with running(tmp_path, nodes=1, gpus=1, gateways=2) as cluster:
        await asyncio.gather(*(_ready(cluster.session, url) for url in cluster.urls))

        async def post(url: str, key: str) -> str:
            headers = {"idempotency-key": key}
            async with cluster.session.post(
                url + "/v1/jobs", json={"command": ["true"], "gpus": 0, "cpus": 1}, headers=headers
            ) as response:
                assert response.status in (200, 201), await response.text()
                return str((await response.json())["id"])

        made = set()
        for number in range(KEYS):
            ids = await asyncio.gather(*(post(url, f"key-{number}") for url in cluster.urls * 2))
            assert len(set(ids)) == 1
            made.add(ids[0])
        counts = await _counted(cluster.session, made)
        assert counts[SUBMITTED] == KEYS == len(made)
        assert counts[IGNORED] > 0, "the gateways never recorded one job twice: this shows nothing"


async def _counted(session: aiohttp.ClientSession, made: set[str]) -> Counter[str]:
    """Return the number of submissions of each type in `/v1/audit/events`, after it shows one of
    every job.
    """
    counts: Counter[str] = Counter()
    after, left = "", set(made)
    async with asyncio.timeout(WITHIN_S):
        while left:
            async with session.get(
                "/v1/audit/events", params={"after": after, "limit": "500"}
            ) as response:
                after, events = (
                    response.headers["x-muster-next"],
                    await response.json(content_type=None),
                )
            for event in events:
                if event["type"].startswith(SUBMITTED):
                    counts[event["type"]] += 1
                    left.discard(event["data"]["job_id"])
            await asyncio.sleep(0.1)
    return counts


async def _ready(session: aiohttp.ClientSession, url: str) -> None:
    """Wait until the gateway has read the log. `running` waits for the first gateway only."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(url + "/readyz") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.1)
