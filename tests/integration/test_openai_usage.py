"""Use of models, from requests over real HTTP through the log and a real archive to /v1/usage."""

import asyncio
import csv
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from libs.common import facts as f
from libs.common import reading, subjects
from libs.common.errors import Refused
from libs.common.messages import access_entry
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Cluster
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.common.transport.snapshot_store import MemorySnapshots
from services.api_gateway import telemetry
from services.api_gateway.openai import usage as usages
from services.audit.answers import Answers
from services.audit.service import Audit
from services.audit.store.store import Store
from services.quota.decide import decide
from services.quota.state import State
from tests.integration.audit_world import no_head
from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_replica import Replica, running
from tests.integration.openai_world import CHAT, MESSAGES, add_replicas
from tests.integration.test_openai_named_models import chat, deployed

SOON_S = 10.0


@asynccontextmanager
async def billed_world(tmp_path: Path, **changed: Any) -> AsyncIterator[tuple[World, Replica]]:
    """A gateway with a model `m` on one GPU, shared with the tenant biology, and an archive."""
    stream, stop = MemoryStream(), asyncio.Event()
    async with gateway_world(tmp_path, stream, **changed) as world, running() as replica:
        store = Store(f"sqlite:///{tmp_path / 'audit.db'}")
        audit = Audit(MemoryLog(stream, idle_s=0.05), store, MemorySnapshots())
        await audit.open()
        await Answers(store, "c1", audit.beyond, no_head, audit.log_end).listen(world.bus)
        archiving = asyncio.create_task(audit.run(stop))
        await world.ask("PUT", "/v1/tenants/biology", 201, json={})
        await deployed(world, "m")
        await world.ask("PATCH", "/v1/deployments/m/guests", json={"add": ["biology"]})
        await add_replicas(world, "m", replica)
        yield world, replica
        stop.set()
        await archiving


async def charge(world: World) -> None:
    """Let quota decide, as its process would."""
    await world.settle()
    state, seq = State(Cluster()), 0
    while (entry := await world.log.get(seq + 1)) is not None:
        seq = entry.seq
        commit = reading.read(state.writers, entry.subject, entry.data)
        state.apply_entry(seq, entry.subject, commit)
    while facts := decide(state, world.gateway.clock.wall_ns()):
        await world.writers.write(subjects.QUOTA, *facts)
        state.apply_own(facts, 1)
    await world.settle()


async def end_replica(world: World, run_ms: int) -> None:
    node, job = NodeId("n1"), JobId("m-1")
    over = f.JobFinished(job_id=job, attempt=1, node_id=node, exit_code=0, run_ms=run_ms)
    await world.writers.on("n1", over, f.JobReleased(job_id=job, attempt=1, node_id=node))
    await world.writers.close("m-1")
    await charge(world)


async def usage(world: World, by: str = "tenant,user,key,model") -> Any:
    """The bill, once the archive has all of the log."""
    last = (await world.log.bounds())[1]
    async with asyncio.timeout(SOON_S):
        while (found := await world.ask("GET", "/v1/usage", params={"by": by}))["seq"] < last:
            await asyncio.sleep(0.02)
    return found


async def test_tokens_and_time_of_two_tenants_add_up_to_the_bill(tmp_path: Path) -> None:
    async with (
        billed_world(tmp_path) as (world, _),
        world.as_("member", "eve", "biology") as eve,
    ):
        await chat(world, "m", x_delay_s=0.05)
        await chat(eve, "m", x_delay_s=0.1)
        await chat(eve, "m")
        await world.gateway.usage.flush()
        await end_replica(world, run_ms=10_000)
        whole = await usage(world)
        by_kind = {(row["tenant"], row["kind"]): row for row in whole["usage"]}
        assert whole["charged_share_ms"] == {"default": 1_000_000}
        assert sum(row["share_ms"] for row in whole["usage"]) == 1_000_000
        own, guest = by_kind["default", "requests"], by_kind["biology", "requests"]
        assert (own["requests"], own["input_tokens"], own["output_tokens"]) == (1, 5, 7)
        assert (guest["requests"], guest["input_tokens"], guest["output_tokens"]) == (2, 10, 14)
        assert own["share_ms"] >= 5_000 and guest["share_ms"] >= 10_000
        assert by_kind["default", "idle"]["share_ms"] > 900_000
        assert own["user"] and own["key"] and guest["user"] == "eve" and guest["key"]
        query = {"user": "eve", "tenant": "biology", "fleet": "true"}
        of_eve = await world.ask("GET", "/v1/usage", params=query)
        assert [row["user"] for row in of_eve["usage"]] == ["eve"] and of_eve["fleet"] == []
        seen = await usage(eve)
        assert [(row["payer"], row["user"], row["kind"]) for row in seen["usage"]] == [
            ("default", "eve", "requests")
        ]
        assert seen["charged_share_ms"] == {}


async def test_requests_to_a_crashed_replica_are_not_idle_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usages, "EVERY_S", 600.0)
    async with billed_world(tmp_path) as (world, _):
        await chat(world, "m", x_delay_s=0.05)
        node, job = NodeId("n1"), JobId("m-1")
        over = f.JobFinished(job_id=job, attempt=1, node_id=node, exit_code=1, run_ms=10_000)
        await world.writers.on("n1", over)
        async with asyncio.timeout(SOON_S):
            while not world.gateway.cluster.jobs[job].used:
                await asyncio.sleep(0.02)
        await world.writers.on("n1", f.JobReleased(job_id=job, attempt=1, node_id=node))
        await world.writers.close("m-1", "failed", 1)
        await charge(world)
        rows = {row["kind"]: row for row in (await usage(world))["usage"]}
        assert rows["requests"]["share_ms"] >= 5_000


async def test_requests_at_once_share_the_time_of_their_replica(tmp_path: Path) -> None:
    async with billed_world(tmp_path) as (world, _):
        await asyncio.gather(*(chat(world, "m", x_delay_s=0.2) for _ in range(4)))
        await world.gateway.usage.flush()
        await end_replica(world, run_ms=10_000)
        (row,) = [row for row in (await usage(world))["usage"] if row["kind"] == "requests"]
        assert row["requests"] == 4 and 20_000 <= row["share_ms"] < 60_000


async def test_a_continued_stream_is_one_request_with_all_its_tokens(tmp_path: Path) -> None:
    async with billed_world(tmp_path) as (world, _), running() as second:
        await world.ask("POST", "/v1/deployments/m/redeploy", 202, json={"continues_streams": True})
        await add_replicas(world, "m", second)
        body = {"model": "m", "messages": MESSAGES, "stream": True, "x_chunks": 6}
        body |= {"x_die": "middle", "stream_options": {"include_usage": True}}
        async with world.session.post(world.url + CHAT, json=body) as response:
            assert "[DONE]" in await response.text()
        await world.gateway.usage.flush()
        rows = (await usage(world))["usage"]
        counts = [(row["requests"], row["input_tokens"], row["output_tokens"]) for row in rows]
        # The second replica counted 5 and 7 tokens; 3 of the 5 were the text so far.
        assert sum(each[0] for each in counts) == 1
        assert [sum(part) for part in zip(*counts, strict=True)] == [1, 2, 10]


async def test_csv_and_metrics_have_the_same_numbers(tmp_path: Path) -> None:
    async with billed_world(tmp_path) as (world, _):
        await chat(world, "m")
        await world.gateway.usage.flush()
        await end_replica(world, run_ms=1_000)
        await usage(world)
        query = {"format": "csv", "by": "model", "since": "1h"}
        async with world.session.get(world.url + "/v1/usage", params=query) as response:
            assert response.content_type == "text/csv"
            rows = list(csv.DictReader(io.StringIO(await response.text())))
        assert sum(int(row["share_ms"]) for row in rows) == 100_000
        async with world.session.get(world.url + "/metrics") as response:
            text = await response.text()
        (line,) = [each for each in text.splitlines() if 'tokens_total{direction="output"' in each]
        assert 'model="m"' in line and 'tenant="default"' in line and line.endswith(" 7.0")
        assert "muster_model_gpu_seconds_total{key=" in text


async def test_a_time_without_records_has_no_lines_and_a_wrong_query_is_refused(
    tmp_path: Path,
) -> None:
    async with billed_world(tmp_path) as (world, _):
        await chat(world, "m")
        await world.gateway.usage.flush()
        await usage(world)
        early = {"until": "2020-01-01T00:00:00Z"}
        assert (await world.ask("GET", "/v1/usage", params=early))["usage"] == []
        for query in ({"by": "node"}, {"format": "xml"}, {"since": "1h", "until": "2h"}):
            await world.ask("GET", "/v1/usage", 422, params=query)


async def test_an_access_record_names_the_model(tmp_path: Path) -> None:
    async with billed_world(tmp_path, records_access=True) as (world, _):
        await world.ask("PATCH", "/v1/deployments/m/aliases", json={"add": ["gpt-4o"]})
        await world.ask("POST", CHAT, json={"model": "gpt-4o", "messages": MESSAGES})
        async with asyncio.timeout(SOON_S):
            while not (rows := await _records(world)):
                await asyncio.sleep(0.02)
        assert [(row["route"], row["model"]) for row in rows] == [(CHAT, "m")]


async def _records(world: World) -> list[dict[str, Any]]:
    found = await world.ask("GET", "/v1/access", params={"route": CHAT})
    rows: list[dict[str, Any]] = found["access"]
    return rows


def test_an_old_access_record_has_no_model() -> None:
    old = access_entry._encoder.encode([1, "r", "k", "t", "u", "GET", "/", [], 200, "", "s"])
    (entry,) = access_entry.unpack(access_entry.pack([old]))
    assert entry.model == "" == entry.detail


async def test_metrics_of_keys_are_shown_to_operators_only(tmp_path: Path) -> None:
    async with (
        billed_world(tmp_path, gateway_cors_origins="*") as (world, _),
        world.as_("member", "eve", "biology") as eve,
        world.as_("operator", "op", "default") as operator,
    ):
        await chat(eve, "m")
        await world.gateway.usage.flush()
        for asker, is_shown in ((eve, False), (operator, True)):
            page = {"origin": "https://page.example.org"}
            async with asker.session.get(world.url + "/metrics", headers=page) as response:
                text = await response.text()
                assert "access-control-allow-origin" not in response.headers
            assert "muster_gateway_requests_total" in text and ('user="eve"' in text) == is_shown


async def test_the_series_of_a_revoked_key_make_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "KEYS_MAX", 1)
    async with (
        billed_world(tmp_path) as (world, _),
        world.as_("member", "eve", "biology") as eve,
        world.as_("member", "bob", "biology") as bob,
    ):
        for asker, shown in ((eve, {"eve"}), (bob, {"eve", ""})):
            await chat(asker, "m")
            await world.gateway.usage.flush()
            assert users_in_metrics(world) == shown
        (key_id,) = [key.key_id for key in world.gateway.cluster.keys.values() if key.user == "eve"]
        await world.ask("DELETE", f"/v1/keys/{key_id}", 204)
        await chat(bob, "m")
        await world.gateway.usage.flush()
        assert users_in_metrics(world) == {"bob", ""}


def users_in_metrics(world: World) -> set[str]:
    samples = [
        each
        for metric in world.gateway.telemetry.usage.gpu_seconds.collect()
        for each in metric.samples
    ]
    return {sample.labels["user"] for sample in samples}


async def test_a_stream_without_usage_counts_as_its_events(tmp_path: Path) -> None:
    async with billed_world(tmp_path) as (world, _):
        body = {"model": "m", "messages": MESSAGES, "stream": True, "x_chunks": 6, "x_finish": 1}
        async with world.session.post(world.url + CHAT, json=body) as response:
            assert b"usage" not in await response.read()
        ((row, counts),) = world.gateway.usage.rows.items()
        assert (row.owner, row.attempt) == ("default", 1)
        assert counts.requests == 1 and counts.inputs > 0 and counts.outputs >= 6


async def test_usage_waits_while_the_log_takes_no_more(tmp_path: Path) -> None:
    async with billed_world(tmp_path) as (world, _):
        await chat(world, "m")
        writer = world.gateway.writer
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(writer, "put", refuse)
            await world.gateway.usage.flush()
        await world.gateway.usage.flush()
        (row,) = (await usage(world))["usage"]
        assert (row["requests"], row["output_tokens"]) == (1, 7)


def refuse(facts: object) -> None:
    raise Refused("too many commits wait")


async def test_a_time_beyond_what_the_log_can_hold_is_refused(tmp_path: Path) -> None:
    async with billed_world(tmp_path) as (world, _):
        for query in ({"until": "9999-12-31"}, {"since": "100000d"}, {"since": "1960-01-01"}):
            found = await world.ask("GET", "/v1/usage", 422, params=query)
            assert "between the years 1970 and 2262" in found["detail"]
