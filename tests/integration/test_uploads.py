"""A directory that a job brings along: sent once, kept whole or not at all, its tenant's own, given
to the node that starts the job.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from libs.common import subjects
from libs.common.facts import AnyFact
from libs.common.model import JobId
from libs.common.state.cluster import Job
from libs.common.transport.log import Entry
from libs.common.transport.log_memory import MemoryStream
from libs.common.transport.uploads import PIECE_BYTES, MemoryUploads, UploadAsk, UploadPiece
from services.api_gateway.http import uploads
from services.api_gateway.intents.prune_intents import job_with_upload
from tests.integration.gateway_world import World, gateway_world

DATA = os.urandom(3 * PIECE_BYTES // 2)
HASH = sha256(DATA).hexdigest()
BOUND = 2 << 20
PATH = f"/v1/uploads/{HASH}"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path, upload_bytes=BOUND) as found:
        await found.writers.begin_term()
        await found.writers.register("n1")
        await found.writers.register("n2")
        yield found


def kept(world: World) -> dict[tuple[str, str], bytes]:
    assert isinstance(world.gateway.uploads, MemoryUploads)
    return world.gateway.uploads.archives


async def asked(
    world: World, node_id: str, job_id: str, mark: int = 0, attempt: int = 1
) -> UploadPiece:
    """As an agent asks."""
    question = msgspec.msgpack.encode(UploadAsk(JobId(job_id), attempt, mark))
    return msgspec.msgpack.decode(
        await world.bus.request(subjects.ask_uploads(node_id), question, 10), type=UploadPiece
    )


async def test_an_upload_is_kept_under_its_hash_and_found_again(world: World) -> None:
    assert "does not exist in this tenant" in (await world.ask("GET", PATH, 404))["detail"]
    sent = await world.ask("PUT", PATH, 201, data=DATA)
    assert (sent["sha256"], sent["size_bytes"]) == (HASH, len(DATA))
    assert (
        await world.ask("GET", PATH) == sent
        and await world.ask("PUT", PATH, data=b"whatever") == sent
    )
    assert kept(world) == {("default", HASH): DATA}


async def test_other_bytes_than_the_name_says_are_not_kept(world: World) -> None:
    refused = await world.ask("PUT", PATH, 422, data=DATA[:-1])
    assert "was not stored" in refused["detail"] and kept(world) == {}
    for name in ("x", "A" * 64, HASH[:-1], HASH + "0"):
        assert (
            "SHA-256" in (await world.ask("PUT", f"/v1/uploads/{name}", 422, data=DATA))["detail"]
        )


async def test_body_over_the_bound_is_refused_with_or_without_a_declared_length(
    world: World,
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(64 << 10)

    await world.ask("PUT", PATH, 413, data=endless())
    assert "bytes" in (await world.ask("PUT", PATH, 413, data=bytes(BOUND + 1)))["detail"]
    assert kept(world) == {} and world.gateway.shares.receiving.held == 0


async def test_an_upload_that_breaks_off_leaves_nothing(world: World) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield DATA[: PIECE_BYTES // 2]
        raise OSError("the cable")

    with pytest.raises((aiohttp.ClientError, OSError)):
        await world.ask("PUT", PATH, 201, data=broken())
    async with asyncio.timeout(10):
        while world.gateway.shares.receiving.held:
            await asyncio.sleep(0.01)
    assert kept(world) == {}
    await world.ask("PUT", PATH, 201, data=DATA)


async def test_a_job_names_only_what_its_own_tenant_has_sent(world: World) -> None:
    refused = await world.ask("POST", "/v1/jobs", 422, json={"command": ["true"], "upload": HASH})
    assert "muster run --upload" in refused["detail"]
    await world.ask("PUT", PATH, 201, data=DATA)
    assert (await world.submit(upload=HASH))["upload"] == HASH
    await world.ask("PUT", "/v1/tenants/physics", 201, json={})
    async with world.as_("member", "ada", "physics") as ada:
        await ada.ask("GET", PATH, 404)
        assert (
            "tenant physics has no upload"
            in (await ada.ask("POST", "/v1/jobs", 422, json={"command": ["true"], "upload": HASH}))[
                "detail"
            ]
        )
    refused = await world.ask(
        "POST", "/v1/jobs", 422, json={"command": ["true"], "upload": HASH, "workdir": "/tmp"}
    )
    assert refused["detail"].startswith("workdir")


async def test_an_upload_that_nothing_uses_is_removed_on_request(world: World) -> None:
    assert "removed already" in (await world.ask("DELETE", PATH, 404))["detail"]
    assert "64 hexadecimal" in (await world.ask("DELETE", "/v1/uploads/x", 422))["detail"]
    sent = await world.ask("PUT", PATH, 201, data=DATA)
    await world.ask("GET", PATH)
    await world.ask("PUT", "/v1/tenants/physics", 201, json={})
    async with world.as_("member", "ada", "physics") as ada:
        await ada.ask("DELETE", PATH, 404)
    async with world.as_("viewer", "eve") as eve:
        await eve.ask("DELETE", PATH, 403)
    assert kept(world) == {("default", HASH): DATA}
    async with world.as_("member", "bob") as bob:
        assert await bob.ask("DELETE", PATH) == sent
    assert kept(world) == {} and world.gateway.shares.uploads.young(0) == {}
    await world.ask("PUT", PATH, 201, data=DATA)


async def test_a_tenant_lists_its_own_uploads(world: World) -> None:
    assert (await world.ask("GET", "/v1/uploads"))["uploads"] == []
    sent = await world.ask("PUT", PATH, 201, data=DATA)
    other = b"another archive"
    second = await world.ask("PUT", f"/v1/uploads/{sha256(other).hexdigest()}", 201, data=other)
    both = sorted((sent, second), key=lambda upload: str(upload["sha256"]))
    assert (await world.ask("GET", "/v1/uploads"))["uploads"] == both
    first = await world.ask("GET", "/v1/uploads?limit=1")
    assert first["uploads"] == both[:1] and first["next"] == both[0]["sha256"]
    rest = await world.ask("GET", f"/v1/uploads?after={first['next']}")
    assert rest["uploads"] == both[1:] and rest["next"] is None
    await world.ask("PUT", "/v1/tenants/physics", 201, json={})
    async with world.as_("member", "ada", "physics") as ada:
        assert (await ada.ask("GET", "/v1/uploads"))["uploads"] == []
        await ada.ask("PUT", PATH, 201, data=DATA)
        assert len((await ada.ask("GET", "/v1/uploads"))["uploads"]) == 1
    for role in ("operator", "admin"):
        async with world.as_(role, role) as one:
            assert (await one.ask("GET", "/v1/uploads"))["uploads"] == both
    async with world.as_("viewer", "eve") as eve:
        await eve.ask("GET", "/v1/uploads", 403)


async def test_an_upload_stays_while_a_job_or_a_model_uses_it(world: World) -> None:
    await world.ask("PUT", PATH, 201, data=DATA)
    job_id = await world.run_to("running", upload=HASH)
    assert f"job {job_id} uses upload" in (await world.ask("DELETE", PATH, 409))["detail"]
    await world.writers.finish(job_id, "n1")
    await world.writers.close(job_id)
    await world.settle()
    body = {"name": "chat", "command": ["serve"], "upload": HASH}
    await world.ask("POST", "/v1/deployments", 201, json=body)
    assert "model chat uses upload" in (await world.ask("DELETE", PATH, 409))["detail"]
    await world.ask("DELETE", "/v1/deployments/chat", 202)
    await world.ask("DELETE", PATH)


SUBMISSIONS: list[tuple[str, dict[str, Any], int]] = [
    ("/v1/jobs", {"command": ["true"], "upload": HASH}, 201),
    ("/v1/jobs:batch", {"jobs": [{"command": ["true"], "upload": HASH}] * 2}, 200),
    ("/v1/deployments", {"name": "chat", "command": ["serve"], "upload": HASH}, 201),
]


@pytest.mark.parametrize(("path", "body", "status"), SUBMISSIONS)
async def test_an_upload_stays_while_its_job_or_model_is_recorded(
    world: World, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], status: int
) -> None:
    await world.ask("PUT", PATH, 201, data=DATA)
    recorded, checked, go = world.gateway.record, asyncio.Event(), asyncio.Event()

    async def record(*facts: AnyFact) -> int:
        checked.set()
        await go.wait()
        return await recorded(*facts)

    monkeypatch.setattr(world.gateway, "record", record)
    submitting = asyncio.create_task(world.ask("POST", path, status, json=body))
    await checked.wait()
    assert "another request" in (await world.ask("DELETE", PATH, 409))["detail"]
    go.set()
    await submitting
    assert "uses upload" in (await world.ask("DELETE", PATH, 409))["detail"]
    assert kept(world) == {("default", HASH): DATA}


async def test_a_gateway_that_lags_removes_no_upload_of_a_job_that_another_acknowledged(
    tmp_path: Path,
) -> None:
    stream, go = MemoryStream(), asyncio.Event()
    async with (
        gateway_world(tmp_path, stream) as one,
        gateway_world(tmp_path, stream, instance="b") as lagging,
    ):
        lagging.gateway.uploads = one.gateway.uploads
        await one.ask("PUT", PATH, 201, data=DATA)
        folded = lagging.gateway._fold

        async def late(batch: Sequence[Entry]) -> None:
            await go.wait()
            await folded(batch)

        lagging.gateway._fold = late  # type: ignore[method-assign]
        job = await one.submit(upload=HASH)
        removing = asyncio.create_task(lagging.ask("DELETE", PATH, 409))
        await asyncio.sleep(0.1)
        go.set()
        assert f"job {job['id']} uses upload" in (await removing)["detail"]
        assert kept(one)


async def test_a_removal_looks_at_the_tenant_s_jobs_in_parts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def noted(jobs: Iterable[Job | None], sha256: str) -> str:
        part = list(jobs)
        sizes.append(len(part))
        return job_with_upload(part, sha256)

    monkeypatch.setattr(uploads, "SCAN_SLICE", 2)
    monkeypatch.setattr(uploads, "job_with_upload", noted)
    await world.ask("PUT", PATH, 201, data=DATA)
    job_id = (await world.submit(upload=HASH))["id"]
    for _ in range(4):
        await world.submit()
    assert f"job {job_id} uses" in (await world.ask("DELETE", PATH, 409))["detail"]
    assert sizes == [2, 2, 1]


async def test_only_the_node_of_the_present_attempt_is_given_the_upload_and_only_while_it_lives(
    world: World,
) -> None:
    await world.ask("PUT", PATH, 201, data=DATA)
    job = await world.run_to("placed", upload=HASH)
    first = await asked(world, "n1", job)
    second = await asked(world, "n1", job, first.mark)
    assert (
        first.data + second.data == DATA
        and first.size_bytes == len(DATA)
        and len(first.data) == PIECE_BYTES
    )
    assert "is not on node n2" in (await asked(world, "n2", job)).refused
    assert "attempt 2" in (await asked(world, "n1", job, attempt=2)).refused
    await world.writers.start(job, "n1")
    await world.writers.finish(job, "n1")
    await world.settle()
    assert "is over" in (await asked(world, "n1", job)).refused


async def test_a_job_without_an_upload_is_given_none_and_a_removed_one_is_named(
    world: World,
) -> None:
    await world.ask("PUT", PATH, 201, data=DATA)
    job, other = await world.run_to("placed", upload=HASH), await world.run_to("placed", node="n2")
    assert "not stored" in (await asked(world, "n2", other)).refused
    await world.gateway.uploads.remove("default", HASH)
    assert (
        f"its upload {HASH[:12]} is not stored any more" in (await asked(world, "n1", job)).refused
    )


async def test_a_question_that_cannot_be_read_is_refused(world: World) -> None:
    answer = await world.bus.request(subjects.ask_uploads("n1"), b"\xc1", 10)
    assert msgspec.msgpack.decode(answer, type=UploadPiece).refused
