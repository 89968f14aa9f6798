"""/v1/allocations, /v1/whatif, pages of lists, server-sent facts, and what the scheduler alone knows, over real HTTP."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common import subjects
from libs.common.messages import Vitals
from libs.common.model import NodeId
from libs.common.new_nodes import NewNodes
from services.scheduler.what_if import WhatIfAsk
from tests.integration.gateway_world import World, gateway_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as found:
        await found.writers.begin_term()
        await found.writers.register("n1")
        await found.writers.register("n2")
        await found.settle()
        yield found


async def test_an_allocation_is_there_from_the_placement_to_the_release(world: World) -> None:
    assert (await world.ask("GET", "/v1/allocations"))["allocations"] == []
    job = await world.run_to("running", user="ada")
    (row,) = (await world.ask("GET", "/v1/allocations"))["allocations"]
    assert row["placed_at"] and row | {"placed_at": ""} == {
        "id": f"n1-g0/{job}.1", "gpu_uuid": "n1-g0", "gpu_index": 0, "node_id": "n1", "job_id": job, "attempt": 1, "share": 100,
        "tenant": "default", "user": "ada", "user_id": "ada", "job_state": "running", "rank": 0, "placed_at": "",
    }  # fmt: skip
    await world.writers.finish(job, "n1")
    await world.settle()
    assert (await world.ask("GET", "/v1/allocations"))["allocations"] == []


async def test_allocations_of_other_tenants_are_seen_by_operators_alone(world: World) -> None:
    await world.ask("PUT", "/v1/tenants/physics", 201)
    job = await world.run_to("running")
    async with world.as_("member", "ada", "physics") as ada, world.as_("operator", "root", "physics") as root:
        assert (await ada.ask("GET", "/v1/allocations"))["allocations"] == []
        assert [row["job_id"] for row in (await root.ask("GET", f"/v1/allocations?node=n1&job={job}"))["allocations"]] == [job]
        assert (await root.ask("GET", "/v1/allocations?node=n2"))["allocations"] == []


@pytest.mark.parametrize(("path", "name", "field"), [("gpus", "gpus", "uuid"), ("nodes", "nodes", "id"), ("tenants", "tenants", "name")])
async def test_a_list_comes_in_pages_that_add_up_to_it(world: World, path: str, name: str, field: str) -> None:
    await world.ask("PUT", "/v1/tenants/physics", 201)
    whole = [row[field] for row in (await world.ask("GET", f"/v1/{path}"))[name]]
    found: list[str] = []
    following = ""
    while True:
        page = await world.ask("GET", f"/v1/{path}?limit=1&after={following}")
        found += [row[field] for row in page[name]]
        assert len(page[name]) == 1
        if not (following := page["next"]):
            break
    assert found == whole and len(whole) > 1
    assert "not in the list" in (await world.ask("GET", f"/v1/{path}?after=nobody", 422))["detail"]
    await world.ask("GET", f"/v1/{path}?limit=0", 422)


async def test_whatif_asks_the_scheduler_in_the_asker_s_tenant_and_records_nothing(world: World) -> None:
    asks = []

    async def answer(subject: str, data: bytes) -> bytes:
        asks.append(msgspec.msgpack.decode(data, type=WhatIfAsk))
        return b'{"would_start":true}'

    before = await world.said()
    assert "scheduler does not answer" in (await world.ask("POST", "/v1/whatif", 503, json={"command": ["x"]}))["detail"]
    await world.bus.subscribe(subjects.ask_scheduler("whatif"), answer)
    assert (await world.ask("POST", "/v1/whatif", json={"command": ["x"], "gpus": 2, "max_execution_time": "1h"}))["would_start"]
    assert [(ask.tenant, ask.spec.gpus, ask.spec.time_limit_s) for ask in asks] == [("default", 2, 3_600)]
    more = {"command": ["x"], "add_nodes": {"nodes": 2, "model": "H100"}}
    assert (await world.ask("POST", "/v1/whatif", json=more))["would_start"]
    assert asks[-1].add == NewNodes(2, 8, "H100")
    for wrong, said in (({"nodes": 0}, "add_nodes.nodes: 0 is out of bounds"), ({"racks": 1}, "racks"), (7, "add_nodes")):
        assert said in (await world.ask("POST", "/v1/whatif", 422, json={"command": ["x"], "add_nodes": wrong}))["detail"]
    assert "did you mean 'gpus'" in (await world.ask("POST", "/v1/whatif", 422, json={"command": ["x"], "gpu": 2}))["detail"]
    assert await world.said() == before


async def test_the_names_that_others_use_are_taken_and_shown(world: World) -> None:
    job = await world.submit(user_id="bob", max_execution_time="2m")
    assert {name: job[name] for name in ("user", "user_id", "time_limit_s", "max_execution_time")} == {
        "user": "bob", "user_id": "bob", "time_limit_s": 120, "max_execution_time": 120,
    }  # fmt: skip
    free = await world.submit()
    assert (free["max_execution_time"], free["gpu_affinity"]) == (None, [])
    assert (await world.submit(gpu_affinity=["GPU-a", "GPU-b"]))["gpu_affinity"] == ["GPU-a", "GPU-b"]
    for twice in ({"user": "a", "user_id": "b"}, {"time_limit": 1, "max_execution_time": 2}, {"gpu_affinity": "a", "gpu_uuids": "b"}):
        await world.ask("POST", "/v1/jobs", 422, json={"command": ["true"], **twice})


async def test_a_device_says_where_it_is_and_what_of_its_memory_is_promised_to_nobody(world: World) -> None:
    await world.run_to("running")
    gpus = (await world.ask("GET", "/v1/gpus?node=n1"))["gpus"]
    assert all(gpu["memory_total"] == gpu["memory_bytes"] and gpu["numa_node"] == gpu["numa"] for gpu in gpus)
    assert {(gpu["held_share"], gpu["memory_available"]) for gpu in gpus} == {(0, gpus[0]["memory_total"]), (100, 0)}
    assert all(isinstance(gpu["pcie_bus_id"], str) for gpu in gpus)


async def test_a_node_s_last_heartbeat_is_the_scheduler_s_word_and_unknown_before_it(world: World) -> None:
    assert [node["last_heartbeat"] for node in (await world.ask("GET", "/v1/nodes"))["nodes"]] == [None, None]
    assert (await world.ask("GET", "/v1/cluster"))["scheduler"] is None

    async def answer(subject: str, data: bytes) -> bytes:
        return msgspec.msgpack.encode(Vitals(1, {NodeId("n1"): 250}, 3, 12.5, 40.0))

    await world.bus.subscribe(subjects.ask_scheduler("vitals"), answer)
    await world.gateway.pulse.take()
    assert [bool(node["last_heartbeat"]) for node in (await world.ask("GET", "/v1/nodes"))["nodes"]] == [True, False]
    assert (await world.ask("GET", "/v1/cluster"))["scheduler"]["decision_latency_us"] == {"p50": 12.5, "p99": 40.0, "n": 3}


async def served(world: World, path: str, count: int, **headers: str) -> list[dict[str, Any]]:
    """The first events of a stream of server-sent events."""
    found: list[dict[str, Any]] = []
    async with world.session.get(world.url + path, headers={"accept": "text/event-stream", **headers}) as response:
        assert response.content_type == "text/event-stream"
        while len(found) < count:
            block = (await response.content.readuntil(b"\n\n")).decode()
            fields = dict(line.split(": ", 1) for line in block.strip().splitlines())
            if "data" in fields:
                found.append(fields | {"data": json.loads(fields["data"])})
    return found


async def test_facts_are_served_as_events_and_resumed_behind_the_last_one_seen(world: World) -> None:
    job = await world.run_to("completed")
    first = await served(world, f"/v1/events?job={job}&after=1", 3)
    assert [event["event"] for event in first] == ["job.submitted", "job.admitted", "job.queued"]
    rest = await served(world, f"/v1/events?job={job}", 3, **{"last-event-id": first[-1]["id"]})
    assert [event["event"] for event in rest] == ["job.placed", "job.started", "job.finished"]
    # Finished and released are one commit: only its last fact says how far a client is.
    assert ["id" in event for event in rest] == [True, True, False]
