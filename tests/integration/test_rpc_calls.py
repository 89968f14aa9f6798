"""Calls over gRPC mean what the routes of REST mean: answers, statuses, keys, places, records."""

import asyncio
import hashlib
import io
import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from libs.common import facts as f
from libs.common.messages import access_entry
from libs.rpc.messages import PACKAGE, message
from services.api_gateway.rpc.methods import METHODS, Kind
from services.api_gateway.rpc.server import MESSAGE_BYTES_MAX
from tests.integration.gateway_world import FakeNode
from tests.integration.rpc_world import (
    SERVERS_FAULT,
    RpcWorld,
    as_json,
    method_of,
    reflected,
    rpc_world,
)

NAMES = {"ref": "nothing", "node_id": "n1", "uuid": "n1-g0", "name": "m", "id": "m"}


@pytest_asyncio.fixture
async def rpc(tmp_path: Path) -> AsyncIterator[RpcWorld]:
    async with rpc_world(tmp_path) as found:
        yield found


async def test_every_method_is_listed_by_reflection_and_can_be_called(rpc: RpcWorld) -> None:
    await rpc.world.writers.register("n1")
    listed = await reflected(rpc.client.channel)
    assert await reflected(rpc.client.channel, "v1alpha") == listed
    called = {f"{PACKAGE}.{each.service}/{each.name}" for each in METHODS}
    assert {f"{name}/{each}" for name, methods in listed.items() for each in methods} == called
    for method in METHODS:
        assert await outcome(rpc, f"{method.service}/{method.name}", method.kind) != (), method


async def outcome(rpc: RpcWorld, name: str, kind: Kind) -> tuple[str, ...]:
    """Return the answers of a call with the fields of a path, or a status that shows no bug."""
    known = [field.name for field in method_of(name).input_type.fields]
    fields = {key: value for key, value in NAMES.items() if key in known[:1]}
    asks = iter([]) if kind.streams_requests else None
    call = rpc.client.call(name, asks=asks, timeout=0.5, **fields)
    try:
        if kind.streams_answers:
            return tuple([type(each).__name__ async for each in call]) or ("nothing",)
        return (type(await call).__name__,)
    except grpc.aio.AioRpcError as error:
        assert error.code() not in SERVERS_FAULT, f"{name}: {error.code()} {error.details()}"
        return (error.code().name,)


async def test_a_job_is_the_same_over_both_protocols(rpc: RpcWorld) -> None:
    job = await rpc.client.call(
        "Jobs/SubmitJob", command=["true"], gpus=2, labels={"a": "b"}, time_limit="1h"
    )
    shown = await rpc.world.ask("GET", f"/v1/jobs/{job.id}")
    assert (job.state, job.gpus, job.time_limit_s) == ("pending", 2, 3_600)
    kept = {name: value for name, value in shown.items() if value not in (None, "", 0, [], {})}
    found = as_json(await rpc.client.call("Jobs/GetJob", ref=job.id))
    assert {name: int(v) if isinstance(kept[name], int) else v for name, v in found.items()} == {
        name: value for name, value in kept.items() if value is not False or name in found
    }


async def test_zero_and_false_differ_from_nothing(rpc: RpcWorld) -> None:
    job = await rpc.client.call("Jobs/SubmitJob", command=["true"], gpus=0, cpus=1)
    assert job.gpus == 0
    assert (await rpc.client.call("Jobs/SubmitJob", command=["true"])).gpus == 1


async def test_lists_come_in_pages(rpc: RpcWorld) -> None:
    for _ in range(3):
        await rpc.world.submit()
    first = await rpc.client.call("Jobs/ListJobs", limit=2)
    rest = await rpc.client.call("Jobs/ListJobs", limit=2, after=first.next)
    assert (len(first.jobs), len(rest.jobs), rest.HasField("next")) == (2, 1, False)


@pytest.mark.parametrize(
    ("name", "fields", "code", "status"),
    [
        ("Jobs/GetJob", {"ref": "nope"}, grpc.StatusCode.NOT_FOUND, 404),
        ("Jobs/GetJob", {}, grpc.StatusCode.INVALID_ARGUMENT, 422),
        ("Jobs/GetJob", {"ref": "a/why"}, grpc.StatusCode.INVALID_ARGUMENT, 422),
        ("Jobs/SubmitJob", {"command": ["x"], "gpus": 99}, grpc.StatusCode.INVALID_ARGUMENT, 422),
        ("Jobs/SubmitJob", {"command": ["x" * 1_049_000]}, grpc.StatusCode.RESOURCE_EXHAUSTED, 413),
        ("Jobs/ListJobs", {"state": "blue"}, grpc.StatusCode.INVALID_ARGUMENT, 422),
        ("Inference/Chat", {"model": "none"}, grpc.StatusCode.NOT_FOUND, 404),
        ("Inference/Chat", {}, grpc.StatusCode.INVALID_ARGUMENT, 400),
        ("Models/GetModel", {"name": "none"}, grpc.StatusCode.NOT_FOUND, 404),
    ],
)
async def test_a_refusal_has_a_code_and_the_problem(
    rpc: RpcWorld, name: str, fields: dict[str, Any], code: grpc.StatusCode, status: int
) -> None:
    error = await rpc.client.fails(name, **fields)
    found = dict(error.trailing_metadata())
    assert (error.code(), found["muster-status"]) == (code, str(status)), error.details()
    assert json.loads(found["muster-problem"])["status"] == status
    assert found["x-request-id"] and error.details()


async def test_without_a_key_nothing_is_answered(rpc: RpcWorld) -> None:
    for key in ("", "wrong"):
        stranger = rpc.client.with_key(key)
        for name in ("Jobs/GetJob", "Jobs/SubmitJob", "Events/Watch", "Inference/Chat"):
            error = await stranger.fails(name)
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED, name
        error = await stranger.fails("Jobs/Exec", asks=iter([]))
        assert error.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_a_key_that_is_given_twice_is_refused(rpc: RpcWorld) -> None:
    error = await rpc.client.fails("Nodes/WhoAmI", metadata=(("authorization", "Bearer other"),))
    assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAUTHENTICATED)


async def test_roles_are_those_of_the_routes(rpc: RpcWorld) -> None:
    made = await rpc.world.ask("POST", "/v1/keys", 201, json={"user": "eve", "role": "viewer"})
    viewer = rpc.client.with_key(made["key"])
    assert (await viewer.call("Nodes/WhoAmI")).user == "eve"
    error = await viewer.fails("Jobs/SubmitJob", command=["true"])
    assert error.code() == grpc.StatusCode.PERMISSION_DENIED


async def test_a_foreign_tenant_s_job_does_not_exist(rpc: RpcWorld) -> None:
    job = await rpc.world.submit()
    await rpc.world.ask("PUT", "/v1/tenants/other", 201, json={})
    body = {"user": "eve", "tenant": "other", "role": "member"}
    other = rpc.client.with_key((await rpc.world.ask("POST", "/v1/keys", 201, json=body))["key"])
    for name in ("GetJob", "CancelJob", "WaitJob", "FollowJob", "ReadOutput", "ExplainJob"):
        error = await other.fails(f"Jobs/{name}", ref=job["id"])
        assert error.code() == grpc.StatusCode.NOT_FOUND, name
    start = message("ExecInput")(start={"ref": job["id"], "command": ["id"]})
    error = await other.fails("Jobs/Exec", asks=iter([start]))
    assert error.code() == grpc.StatusCode.NOT_FOUND
    assert not (await other.call("Jobs/ListJobs", all=True)).jobs


async def test_a_repeated_submission_gives_the_first_job(rpc: RpcWorld) -> None:
    once = (("idempotency-key", "k-1"),)
    first = await rpc.client.call("Jobs/SubmitJob", metadata=once, command=["true"])
    call = rpc.client.call("Jobs/SubmitJob", metadata=once, command=["true"])
    assert (await call).id == first.id
    assert dict(await call.trailing_metadata())["idempotent-replayed"] == "true"
    error = await rpc.client.fails("Jobs/SubmitJob", metadata=once, command=["false"])
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_a_request_id_comes_back(rpc: RpcWorld) -> None:
    call = rpc.client.call("Nodes/WhoAmI", metadata=(("x-request-id", "mine-1"),))
    await call
    assert dict(await call.trailing_metadata())["x-request-id"] == "mine-1"


async def test_every_call_is_recorded(rpc: RpcWorld) -> None:
    await rpc.client.call("Nodes/WhoAmI")
    await rpc.client.fails("Jobs/GetJob")
    await rpc.client.with_key("wrong").fails("Jobs/ListJobs")
    await rpc.world.gateway.access.flush()
    entry = await rpc.world.log.get((await rpc.world.log.bounds())[1])
    assert entry is not None
    (fact,) = f.decode(entry.data).facts
    assert isinstance(fact, f.AccessRecorded)
    rows = [(row.detail, row.status, row.source) for row in access_entry.unpack(fact.entries)]
    assert rows == [
        ("/muster.v1.Nodes/WhoAmI", 200, "127.0.0.1"),
        ("/muster.v1.Jobs/GetJob", 422, "127.0.0.1"),
        ("/muster.v1.Jobs/ListJobs", 401, "127.0.0.1"),
    ]


async def test_a_wait_shows_each_state_until_the_end(rpc: RpcWorld) -> None:
    writers, job = rpc.world.writers, await rpc.world.submit()
    await writers.begin_term()
    await writers.register("n1")
    steps = {
        "pending": lambda: writers.queue(job["id"]),
        "queued": lambda: writers.place(job["id"], "n1"),
        "placed": lambda: writers.start(job["id"], "n1"),
        "running": lambda: writers.finish(job["id"], "n1"),
        "releasing": lambda: writers.close(job["id"]),
    }
    seen = []
    async for shown in rpc.client.call("Jobs/WaitJob", ref=job["id"]):
        seen.append(shown.state)
        if step := steps.get(shown.state):
            await step()
        if shown.state == "running":
            await writers.close(job["id"])
    assert seen[0] == "pending" and seen[-1] == "completed"
    await rpc.quiet()


async def test_output_and_frames_follow_a_job(rpc: RpcWorld) -> None:
    await rpc.world.writers.begin_term()
    await rpc.world.writers.register("n1")
    node = FakeNode()
    await node.listen(rpc.world.bus, "n1")
    job_id = await rpc.world.run_to("running", stdin=True)
    node.say(job_id, "stdout", b"hello\n")
    call = rpc.client.call("Jobs/FollowJob", ref=job_id)
    frames = [await call.read() for _ in range(2)]
    assert {frame.data for frame in frames} == {b"", b"hello\n"}
    assert [frame.state for frame in frames if frame.HasField("state")] == ["running"]
    taken = await rpc.client.call("Jobs/SendInput", ref=job_id, data=b"in\x00put", eof=True)
    assert (taken.next_offset, taken.closed, bytes(node.input)) == (6, True, b"in\x00put")
    node.say(job_id, "stdout", b"bye\n", end=True)
    node.say(job_id, "stderr", b"", end=True)
    pieces = await rpc.client.all("Jobs/ReadOutput", ref=job_id, stream="stdout", follow=True)
    assert b"".join(piece.data for piece in pieces) == b"hello\nbye\n"
    call.cancel()
    await rpc.quiet()


async def test_facts_are_listed_and_followed(rpc: RpcWorld) -> None:
    job = await rpc.world.submit()
    listed = await rpc.client.call("Events/ListEvents", job=job["id"])
    assert [event.kind for event in listed.events] == ["job.submitted"]
    assert listed.events[0].fact["job_id"] == job["id"]
    followed = rpc.client.call("Events/FollowEvents", after=listed.next)
    await followed.initial_metadata()
    again = await rpc.world.submit()
    event = await followed.read()
    assert (event.kind, event.fact["job_id"]) == ("job.submitted", again["id"])
    followed.cancel()
    watched = rpc.client.call("Events/Watch")
    changes = [await watched.read() for _ in range(3)]
    assert [change.event for change in changes] == ["job", "job", "ready"]
    assert {change.job.id for change in changes[:2]} == {job["id"], again["id"]}
    watched.cancel()
    await rpc.quiet()


async def test_a_cancelled_call_and_a_passed_deadline_free_their_places(rpc: RpcWorld) -> None:
    job = await rpc.world.submit()
    calls = [rpc.client.call("Jobs/FollowJob", ref=job["id"]) for _ in range(8)]
    await asyncio.gather(*(call.initial_metadata() for call in calls))
    assert rpc.world.gateway.places.by_tenant["default"] == 8
    for call in calls:
        call.cancel()
    await rpc.quiet()
    error = await rpc.client.fails("Events/Watch", timeout=0.3)
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    error = await rpc.client.fails("Jobs/WaitJob", ref=job["id"], timeout=0.3)
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await rpc.quiet()


async def test_a_submission_that_is_cancelled_is_stored_whole_or_not_at_all(
    rpc: RpcWorld, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(20):
        once = (("idempotency-key", f"k-{number}"),)
        call = rpc.client.call("Jobs/SubmitJob", metadata=once, command=["true"])
        await asyncio.sleep(number * 0.0004)
        call.cancel()
        again = await rpc.client.call("Jobs/SubmitJob", metadata=once, command=["true"])
        assert again.state == "pending"
    listed = await rpc.client.call("Jobs/ListJobs")
    assert len(listed.jobs) == 20
    assert not [record for record in caplog.records if "because of a bug" in record.getMessage()]
    await rpc.quiet()


async def test_followers_are_bounded_as_over_http(tmp_path: Path) -> None:
    async with rpc_world(tmp_path, followers_per_tenant=2) as rpc:
        held = [rpc.client.call("Events/Watch") for _ in range(2)]
        await asyncio.gather(*(call.initial_metadata() for call in held))
        error = await rpc.client.fails("Events/Watch")
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert json.loads(dict(error.trailing_metadata())["muster-problem"])["retry_after_s"] == 10
        for call in held:
            call.cancel()
        await rpc.quiet()


def archive() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        member = tarfile.TarInfo("main.py")
        member.size = 2_000_000
        tar.addfile(member, io.BytesIO(b"#" * member.size))
    return file.getvalue()


async def test_an_archive_larger_than_a_message_is_sent_in_pieces(rpc: RpcWorld) -> None:
    data, kind = archive(), message("UploadPiece")
    sha256 = hashlib.sha256(data).hexdigest()
    pieces = [
        kind(sha256=sha256 if begin == 0 else "", data=data[begin : begin + 500_000])
        for begin in range(0, len(data), 500_000)
    ]
    sent = await rpc.client.call("Jobs/SendUpload", asks=iter(pieces))
    found = await rpc.client.call("Jobs/FindUpload", sha256=sha256)
    assert sent.size_bytes == found.size_bytes == len(data)
    job = await rpc.client.call("Jobs/SubmitJob", command=["true"], upload=sha256)
    assert job.upload == sha256
    wrong = kind(sha256="0" * 64, data=b"x")
    error = await rpc.client.fails("Jobs/SendUpload", asks=iter([wrong]))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    await rpc.quiet()


async def test_a_message_beyond_the_bound_is_refused(rpc: RpcWorld) -> None:
    error = await rpc.client.fails("Jobs/SubmitJob", asks=b"\x0a" * (MESSAGE_BYTES_MAX + 1))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("name", ["Jobs/GetJob", "Jobs/WaitJob", "Inference/ChatStream"])
@pytest.mark.parametrize("data", [b"\xff", b"\x0a\xff", b"\x0a\x02\xff\xfe", b"\x0a\x05ab"])
async def test_a_malformed_message_is_the_caller_s_fault(
    rpc: RpcWorld, name: str, data: bytes
) -> None:
    error = await rpc.client.fails(name, asks=data)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error.details()


@pytest.mark.parametrize("name", ["Jobs/SendUpload", "Jobs/Exec", "Jobs/Forward"])
async def test_a_malformed_piece_ends_a_stream(rpc: RpcWorld, name: str) -> None:
    for pieces in ([b"\xff"], [], [b""]):
        error = await rpc.client.fails(name, asks=iter(pieces))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error.details()
    await rpc.quiet()


async def test_a_client_that_does_not_read_loses_its_place(tmp_path: Path) -> None:
    async with rpc_world(tmp_path, gateway_unread_ms=300) as rpc:
        await rpc.world.writers.begin_term()
        await rpc.world.writers.register("n1")
        node = FakeNode()
        await node.listen(rpc.world.bus, "n1")
        job_id = await rpc.world.run_to("running")
        node.say(job_id, "stdout", b"x" * (8 << 20))
        call = rpc.client.call("Jobs/ReadOutput", ref=job_id, follow=True)
        await call.initial_metadata()
        await rpc.quiet()
        call.cancel()
