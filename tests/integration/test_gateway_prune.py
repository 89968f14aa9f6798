"""/v1/prune: every node is asked, what went is counted per node; over real HTTP."""

from collections.abc import AsyncIterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from libs.common.messages import PruneAsk, PruneDone
from libs.common.subjects import ask_node
from libs.common.transport.uploads import Upload
from services.api_gateway.intents.prune_intents import YOUNG_S, old_uploads
from services.api_gateway.times import instant_ns
from tests.integration.gateway_world import World, gateway_world

DONE = PruneDone(jobs=3, size_bytes=100, jobs_left=2, bytes_left=40, uncopied=1)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path, ask_past_ms=200) as made:
        await made.writers.begin_term()
        for node_id in ("n1", "n2"):
            await made.writers.register(node_id)
        await made.settle()
        yield made


async def listen(world: World, node_id: str) -> list[PruneAsk]:
    heard: list[PruneAsk] = []

    async def pruned(subject: str, data: bytes) -> bytes:
        heard.append(msgspec.msgpack.decode(data, type=PruneAsk))
        return msgspec.msgpack.encode(DONE)

    await world.bus.subscribe(ask_node(node_id, "prune"), pruned)
    return heard


async def test_prune_asks_every_node_and_counts_what_was_removed(world: World) -> None:
    heard = [await listen(world, "n1"), await listen(world, "n2")]
    found = await world.ask("POST", "/v1/prune", json={"older_than_s": 60, "dry_run": True})
    assert heard == [[PruneAsk(60, None, True)]] * 2
    row = {
        "jobs": 3,
        "size_bytes": 100,
        "jobs_left": 2,
        "bytes_left": 40,
        "uncopied": 1,
        "error": "",
    }
    assert found["nodes"] == [{"node_id": "n1", **row}, {"node_id": "n2", **row}]
    assert (found["jobs"], found["size_bytes"], found["dry_run"]) == (6, 200, True)


async def test_a_node_that_does_not_answer_is_named_and_the_others_are_pruned(world: World) -> None:
    await listen(world, "n2")
    found = await world.ask("POST", "/v1/prune", json={"keep_bytes": 0})
    assert [(row["node_id"], row["jobs"], row["error"]) for row in found["nodes"]] == [
        ("n1", 0, "does not answer"),
        ("n2", 3, ""),
    ]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "the request has no bound"),
        ({"dry_run": True}, "the request has no bound"),
        ({"older_than": 1}, "did you mean 'older_than_s'"),
        ({"older_than_s": -1}, "out of bounds"),
        ({"keep_bytes": "10GiB"}, "keep_bytes: expected"),
    ],
)
async def test_invalid_prune_request_is_refused_without_asking_a_node(
    world: World, body: dict[str, object], said: str
) -> None:
    heard = await listen(world, "n1")
    problem = await world.ask("POST", "/v1/prune", 422, json=body)
    assert said in problem["detail"]
    assert heard == []


async def test_a_member_may_not_prune(world: World) -> None:
    async with world.as_("member", "ada") as member:
        await member.ask("POST", "/v1/prune", 403, json={"keep_bytes": 0})


async def test_an_upload_that_no_living_job_names_goes_and_one_that_a_job_needs_stays(
    world: World,
) -> None:
    await listen(world, "n1")
    await listen(world, "n2")
    store, (needed, other) = world.gateway.uploads, (b"needed", b"other")
    for data in (needed, other):
        await store.put("default", sha256(data).hexdigest(), BytesIO(data))
    await world.submit(upload=sha256(needed).hexdigest())
    tried = await world.ask("POST", "/v1/prune", json={"keep_bytes": 0, "dry_run": True})
    assert (tried["uploads"], tried["uploads_bytes"], len(await store.listed())) == (
        1,
        len(other),
        2,
    )
    assert (await world.ask("POST", "/v1/prune", json={"older_than_s": 60}))["uploads"] == 1
    assert [each.sha256 for each in await store.listed()] == [sha256(needed).hexdigest()]


async def test_the_upload_of_a_deployed_model_stays_though_no_replica_lives(world: World) -> None:
    name = sha256(b"model").hexdigest()
    await listen(world, "n1")
    await listen(world, "n2")
    await world.gateway.uploads.put("default", name, BytesIO(b"model"))
    await world.ask(
        "POST",
        "/v1/deployments",
        422,
        json={"name": "m", "command": ["serve"], "upload": "ab" * 32},
    )
    await world.ask(
        "POST", "/v1/deployments", 201, json={"name": "m", "command": ["serve"], "upload": name}
    )
    assert (await world.ask("POST", "/v1/prune", json={"older_than_s": 60}))["uploads"] == 0
    await world.ask("DELETE", "/v1/deployments/m", 202)
    assert (await world.ask("POST", "/v1/prune", json={"older_than_s": 60}))["uploads"] == 0
    hour_later_ns = world.gateway.clock.wall_ns() + YOUNG_S * 1_000_000_000
    assert world.gateway.shares.uploads.young(hour_later_ns) == {}
    assert (await world.ask("POST", "/v1/prune", json={"older_than_s": 60}))["uploads"] == 1


def test_an_upload_that_was_sent_just_now_stays() -> None:
    sent = Upload("t", "a" * 64, 5, "2026-01-01T00:00:00+00:00")
    at_ns = instant_ns(sent.sent_at, "at", 0)
    assert old_uploads([sent], (), PruneAsk(0, 0), at_ns + (YOUNG_S - 1) * 1_000_000_000) == []
    assert old_uploads([sent], (), PruneAsk(keep_bytes=4), at_ns + YOUNG_S * 1_000_000_000) == [
        sent
    ]
    assert old_uploads([sent], (), PruneAsk(keep_bytes=5), at_ns + YOUNG_S * 1_000_000_000) == []
