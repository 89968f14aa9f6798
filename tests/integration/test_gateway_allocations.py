"""/v1/allocations, /v1/whatif, pages of lists, server-sent facts, and what the scheduler alone
knows, over real HTTP.
"""

import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.life import job_life
from libs.common.messages import NewNodes, Vitals
from libs.common.model import GpuHold, GpuId, JobId, Member, NodeId
from libs.common.state.ordering import SECOND_NS
from services.scheduler.questions.what_if import WhatIfAsk
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
        "id": f"n1-g0/{job}.1", "gpu_uuid": "n1-g0", "gpu_index": 0, "node_id": "n1", "job_id": job,
        "attempt": 1, "share": 100,
        "tenant": "default", "user": "ada", "user_id": "ada", "job_state": "running", "rank": 0,
        "placed_at": "",
        "kind": "job", "expires_at": None,
    }  # fmt: skip
    await world.writers.finish(job, "n1")
    await world.settle()
    assert (await world.ask("GET", "/v1/allocations"))["allocations"] == []


async def test_allocations_of_other_tenants_are_seen_by_operators_alone(world: World) -> None:
    await world.ask("PUT", "/v1/tenants/physics", 201)
    job = await world.run_to("running")
    async with (
        world.as_("member", "ada", "physics") as ada,
        world.as_("operator", "root", "physics") as root,
    ):
        assert (await ada.ask("GET", "/v1/allocations"))["allocations"] == []
        assert [
            row["job_id"]
            for row in (await root.ask("GET", f"/v1/allocations?node=n1&job={job}"))["allocations"]
        ] == [job]
        assert (await root.ask("GET", "/v1/allocations?node=n2"))["allocations"] == []


async def allocate(world: World, expires_s: int = 60, **fields: object) -> str:
    """An allocation on n1 that is held."""
    made = await world.ask("POST", "/v1/allocations", 201, json={"expires": expires_s, **fields})
    assert (made["kind"], made["state"], made["nodes"], made["expires_at"]) == (
        "allocation",
        "pending",
        [],
        None,
    )
    job_id = str(made["id"])
    await world.writers.queue(job_id)
    member = Member(NodeId("n1"), 1, 0, (GpuHold(GpuId("n1-g0")),))
    until_ns = world.gateway.clock.wall_ns() + expires_s * SECOND_NS
    await world.writers.schedule(
        f.JobPlaced(job_id=JobId(job_id), attempt=1, members=(member,), expires_ns=until_ns)
    )
    await world.writers.start(job_id, "n1")
    await world.settle()
    return job_id


async def test_an_allocation_shows_its_devices_end_and_variables(
    world: World,
) -> None:
    job_id = await allocate(world, name="desk", labels={"team": "a"}, user="ada", warn=20)
    shown = await world.ask("GET", "/v1/allocations/desk")
    assert (shown["id"], shown["state"], shown["user"], shown["labels"], shown["warned"]) == (
        job_id,
        "running",
        "ada",
        {"team": "a"},
        False,
    )
    (node,) = shown["nodes"]
    assert (node["node_id"], [gpu["uuid"] for gpu in node["gpus"]]) == ("n1", ["n1-g0"])
    assert node["env"] == {"CUDA_VISIBLE_DEVICES": "n1-g0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert (shown["policy"]["expires_s"], shown["policy"]["warn_s"], shown["policy"]["queue"]) == (
        60,
        20,
        "default",
    )
    assert 0 <= shown["statistics"]["gpu_hours"] * 3_600 <= shown["statistics"]["held_s"] + 0.01
    (row,) = (await world.ask("GET", "/v1/allocations?kind=allocation"))["allocations"]
    assert (row["job_id"], row["expires_at"]) == (job_id, shown["expires_at"])
    assert (await world.ask("GET", "/v1/allocations?kind=job"))["allocations"] == []
    (job,) = (await world.ask("GET", "/v1/jobs?kind=allocation"))["jobs"]
    assert (job["kind"], job["expires_at"], job["waits_for"]) == (
        "allocation",
        shown["expires_at"],
        job_life.HELD,
    )


async def test_an_allocation_is_extended_warned_of_and_given_back(world: World) -> None:
    job_id = await allocate(world)
    before = (await world.ask("GET", f"/v1/allocations/{job_id}"))["expires_at"]
    longer = await world.ask("PATCH", f"/v1/allocations/{job_id}", json={"by": "1h"})
    assert datetime.fromisoformat(longer["expires_at"]) - datetime.fromisoformat(
        before
    ) == timedelta(hours=1)
    until_ns = world.gateway.cluster.jobs[JobId(job_id)].expires_ns
    await world.writers.schedule(
        f.AllocationWarned(job_id=JobId(job_id), attempt=1, expires_ns=until_ns)
    )
    await world.settle()
    assert (await world.ask("GET", f"/v1/allocations/{job_id}"))["warned"]
    await world.ask("DELETE", f"/v1/allocations/{job_id}", 202)
    assert f.CancelRequested(job_id=JobId(job_id), user="tests") in await world.said()
    assert (
        "was released or has ended"
        in (await world.ask("PATCH", f"/v1/allocations/{job_id}", 409, json={"by": "1h"}))["detail"]
    )


async def test_release_lets_a_held_job_go_and_gives_an_allocation_back(world: World) -> None:
    held, job_id = (await world.submit(hold=True))["id"], await allocate(world)
    assert not (await world.ask("POST", f"/v1/jobs/{held}/release", 202))["cancel_requested"]
    assert (await world.ask("POST", f"/v1/jobs/{job_id}/release", 202))["cancel_requested"]


async def test_a_job_is_one_kind_of_allocation_that_its_command_ends(world: World) -> None:
    job = await world.run_to("running", node="n2")
    shown = await world.ask("GET", f"/v1/allocations/{job}")
    assert (shown["kind"], shown["expires_at"], shown["policy"]["expires_s"]) == ("job", None, None)
    assert [gpu["uuid"] for gpu in shown["nodes"][0]["gpus"]] == ["n2-g0"]
    assert (
        "not an allocation" in (await world.ask("DELETE", f"/v1/allocations/{job}", 409))["detail"]
    )
    assert (
        "not an allocation"
        in (await world.ask("PATCH", f"/v1/allocations/{job}", 409, json={"by": 9}))["detail"]
    )
    held = await allocate(world)
    for verb in ("hold", "requeue"):
        assert (
            "muster extend" in (await world.ask("POST", f"/v1/jobs/{held}/{verb}", 409))["detail"]
        )
    assert (
        "muster extend"
        in (await world.ask("PATCH", f"/v1/jobs/{held}", 409, json={"time_limit": "9h"}))["detail"]
    )


async def test_an_allocation_is_its_user_s_own(world: World) -> None:
    async with (
        world.as_("member", "ada") as ada,
        world.as_("member", "bob") as bob,
        world.as_("viewer", "eve") as eve,
    ):
        job_id = (await ada.ask("POST", "/v1/allocations", 201, json={}))["id"]
        await bob.ask("GET", f"/v1/allocations/{job_id}")
        for other in (bob, eve):
            await other.ask("PATCH", f"/v1/allocations/{job_id}", 403, json={"by": 9})
            await other.ask("DELETE", f"/v1/allocations/{job_id}", 403)
            await other.ask("POST", f"/v1/jobs/{job_id}/release", 403)
        await ada.ask("DELETE", f"/v1/allocations/{job_id}", 202)


async def test_a_repeated_request_with_one_idempotency_key_creates_one_allocation(
    world: World,
) -> None:
    headers = {"idempotency-key": "desk"}
    first = await world.ask("POST", "/v1/allocations", 201, json={"gpus": 1}, headers=headers)
    assert (await world.ask("POST", "/v1/allocations", 200, json={"gpus": 1}, headers=headers))[
        "id"
    ] == first["id"]
    await world.ask("POST", "/v1/allocations", 409, json={"gpus": 2}, headers=headers)


@pytest.mark.parametrize(
    ("path", "name", "field"),
    [("gpus", "gpus", "uuid"), ("nodes", "nodes", "id"), ("tenants", "tenants", "name")],
)
async def test_a_list_comes_in_pages_that_add_up_to_it(
    world: World, path: str, name: str, field: str
) -> None:
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
    assert "not in the list" in (await world.ask("GET", f"/v1/{path}?after=unknown", 422))["detail"]
    await world.ask("GET", f"/v1/{path}?limit=0", 422)


async def test_whatif_asks_the_scheduler_in_the_asker_s_tenant_and_records_nothing(
    world: World,
) -> None:
    asks = []

    async def answer(subject: str, data: bytes) -> bytes:
        asks.append(msgspec.msgpack.decode(data, type=WhatIfAsk))
        return b'{"would_start":true}'

    before = await world.said()
    assert (
        "scheduler does not answer"
        in (await world.ask("POST", "/v1/whatif", 503, json={"command": ["x"]}))["detail"]
    )
    await world.bus.subscribe(subjects.ask_scheduler("whatif"), answer)
    assert (
        await world.ask(
            "POST", "/v1/whatif", json={"command": ["x"], "gpus": 2, "max_execution_time": "1h"}
        )
    )["would_start"]
    assert [(ask.tenant, ask.spec.gpus, ask.spec.time_limit_s) for ask in asks] == [
        ("default", 2, 3_600)
    ]
    more = {"command": ["x"], "add_nodes": {"nodes": 2, "model": "H100"}}
    assert (await world.ask("POST", "/v1/whatif", json=more))["would_start"]
    assert asks[-1].add == NewNodes(2, 8, "H100")
    for wrong, said in (
        ({"nodes": 0}, "add_nodes.nodes: 0 is out of bounds"),
        ({"racks": 1}, "racks"),
        (7, "add_nodes"),
    ):
        assert (
            said
            in (
                await world.ask(
                    "POST", "/v1/whatif", 422, json={"command": ["x"], "add_nodes": wrong}
                )
            )["detail"]
        )
    assert (
        "did you mean 'gpus'"
        in (await world.ask("POST", "/v1/whatif", 422, json={"command": ["x"], "gpu": 2}))["detail"]
    )
    assert await world.said() == before


async def test_the_inventory_is_the_scheduler_s_own_and_behind_a_node_that_there_is(
    world: World,
) -> None:
    asks = []

    async def answer(subject: str, data: bytes) -> bytes:
        asks.append(data)
        return b'{"nodes":[],"next":null,"seq":7}'

    await world.ask("GET", "/v1/inventory", 503)
    await world.bus.subscribe(subjects.ask_scheduler("inventory"), answer)
    assert (await world.ask("GET", "/v1/inventory"))["seq"] == 7
    await world.ask("GET", "/v1/inventory?after=n1")
    await world.ask("GET", "/v1/inventory?after=unknown", 404)
    assert asks == [b"", b"n1"]


async def test_the_names_that_others_use_are_taken_and_shown(world: World) -> None:
    job = await world.submit(user_id="bob", max_execution_time="2m")
    names = ("user", "user_id", "time_limit_s", "max_execution_time")
    assert {name: job[name] for name in names} == {
        "user": "bob", "user_id": "bob", "time_limit_s": 120, "max_execution_time": 120,
    }  # fmt: skip
    free = await world.submit()
    assert (free["max_execution_time"], free["gpu_affinity"]) == (None, [])
    assert (await world.submit(gpu_affinity=["GPU-a", "GPU-b"]))["gpu_affinity"] == [
        "GPU-a",
        "GPU-b",
    ]
    for twice in (
        {"user": "a", "user_id": "b"},
        {"time_limit": 1, "max_execution_time": 2},
        {"gpu_affinity": "a", "gpu_uuids": "b"},
    ):
        await world.ask("POST", "/v1/jobs", 422, json={"command": ["true"], **twice})


async def test_a_device_shows_its_location_and_its_available_memory(
    world: World,
) -> None:
    await world.run_to("running")
    gpus = (await world.ask("GET", "/v1/gpus?node=n1"))["gpus"]
    assert all(
        gpu["memory_total"] == gpu["memory_bytes"] and gpu["numa_node"] == gpu["numa"]
        for gpu in gpus
    )
    assert {(gpu["held_share"], gpu["memory_available"]) for gpu in gpus} == {
        (0, gpus[0]["memory_total"]),
        (100, 0),
    }
    assert all(isinstance(gpu["pcie_bus_id"], str) for gpu in gpus)


async def test_the_last_heartbeat_comes_from_the_scheduler_and_is_unknown_before(
    world: World,
) -> None:
    assert [node["last_heartbeat"] for node in (await world.ask("GET", "/v1/nodes"))["nodes"]] == [
        None,
        None,
    ]
    assert (await world.ask("GET", "/v1/cluster"))["scheduler"] is None

    async def answer(subject: str, data: bytes) -> bytes:
        return msgspec.msgpack.encode(
            Vitals(
                epoch=1,
                heard_ms_ago={NodeId("n1"): 250},
                decisions=3,
                decision_p50_us=12.5,
                decision_p99_us=40.0,
            )
        )

    await world.bus.subscribe(subjects.ask_scheduler("vitals"), answer)
    await world.gateway.pulse.take()
    assert [
        bool(node["last_heartbeat"]) for node in (await world.ask("GET", "/v1/nodes"))["nodes"]
    ] == [True, False]
    assert (await world.ask("GET", "/v1/cluster"))["scheduler"]["decision_latency_us"] == {
        "p50": 12.5,
        "p99": 40.0,
        "n": 3,
    }


async def served(world: World, path: str, count: int, **headers: str) -> list[dict[str, Any]]:
    """The first events of a stream of server-sent events."""
    found: list[dict[str, Any]] = []
    async with world.session.get(
        world.url + path, headers={"accept": "text/event-stream", **headers}
    ) as response:
        assert response.content_type == "text/event-stream"
        while len(found) < count:
            block = (await response.content.readuntil(b"\n\n")).decode()
            fields = dict(line.split(": ", 1) for line in block.strip().splitlines())
            if "data" in fields:
                found.append(fields | {"data": json.loads(fields["data"])})
    return found


async def test_facts_are_served_as_events_and_resumed_behind_the_last_one_seen(
    world: World,
) -> None:
    job = await world.run_to("completed")
    first = await served(world, f"/v1/events?job={job}&after=1", 3)
    assert [event["event"] for event in first] == ["job.submitted", "job.admitted", "job.queued"]
    rest = await served(world, f"/v1/events?job={job}", 3, **{"last-event-id": first[-1]["id"]})
    assert [event["event"] for event in rest] == ["job.placed", "job.started", "job.finished"]
    # Finished and released are one commit: only its last fact says how far a client is.
    assert ["id" in event for event in rest] == [True, True, False]
