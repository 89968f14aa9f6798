"""A planted secret reaches the job that names it, and stands nowhere else: not in the log, the
archive, the job's directory or any process's log.
"""

import asyncio
import json
import sqlite3
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nacl.public import PrivateKey, PublicKey, SealedBox

from libs.common import subjects
from libs.common.errors import Refused, Unavailable
from libs.common.messages import StartOrder
from libs.common.messages.secret_messages import REGISTRY, SecretAnswer, SecretAsk
from libs.common.model import JobId, JobSpec, NodeId
from libs.common.transport.bus_memory import MemoryBus
from libs.embedded.identity import vault_key_file
from services.node_agent.jobs.secret_values import registry_credentials
from tests.chaos.cluster import running
from tests.integration.gateway_world import World, gateway_world

PLANTED = "pl4nted-7f3a9c-do-not-keep-me"
# Says whether it was given the value, without saying it.
SAY = "import hashlib, os; print(hashlib.sha256(os.environ['HF_TOKEN'].encode()).hexdigest())"
WAIT_S = 60.0


def digest() -> str:
    import hashlib

    return hashlib.sha256(PLANTED.encode()).hexdigest()


def found_in(folder: Path) -> list[str]:
    """Files below `folder` that hold the planted value."""
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and PLANTED.encode() in path.read_bytes()
    ]


def archived(database: Path) -> bytes:
    """Everything of every row of the archive, what is packed unpacked."""
    with sqlite3.connect(database) as archive:
        tables = [
            row[0] for row in archive.execute("select name from sqlite_master where type = 'table'")
        ]
        cells = [
            cell
            for table in tables
            for row in archive.execute(f"select * from {table}")
            for cell in row
        ]
    raw = [cell if isinstance(cell, bytes) else str(cell).encode() for cell in cells]
    return b"\n".join([*raw, *(zlib.decompress(each) for each in raw if each[:2] == b"\x78\x9c")])


async def test_a_planted_secret_reaches_its_job_and_stands_nowhere_else(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=2, gpus=2) as chaos:
        status, shown = await chaos.try_once("PUT", "/v1/secrets/hf-token", json={"value": PLANTED})
        assert status == 201 and shown["version"] == 1, shown
        body = {"command": ["python3", "-c", SAY], "secrets": {"HF_TOKEN": "hf-token"}, "nodes": 2}
        status, job = await chaos.try_once("POST", "/v1/jobs", json=body)
        assert status == 201, job
        ended = await until_ended(chaos.get, job["id"])
        assert ended["state"] == "completed", ended
        async with chaos.session.get(f"/v1/jobs/{job['id']}/output") as answer:
            assert digest() in await answer.text()
        for path in (
            "/v1/secrets",
            f"/v1/jobs/{job['id']}",
            f"/v1/jobs/{job['id']}/history",
            "/v1/events",
            "/v1/state",
            "/v1/access",
        ):
            async with chaos.session.get(path) as answer:
                text = await answer.text()
                assert answer.status == 200 and PLANTED not in text, path
        await asyncio.sleep(1)  # the archive has the job's end
        (database,) = chaos.state.rglob("audit.db")
        assert PLANTED.encode() not in archived(database) and b"hf-token" in archived(database)
        assert found_in(tmp_path) == []


async def until_ended(get: Any, job_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        job: dict[str, Any] = await get(f"/v1/jobs/{job_id}")
        if job["ended_at"]:
            return job
        await asyncio.sleep(0.1)
    raise TimeoutError(json.dumps(job))


@asynccontextmanager
async def secret_world(tmp_path: Path) -> AsyncIterator[World]:
    """A gateway with one secret of the tenant default, and a job that names it, placed on n1 and
    not on n2.
    """
    async with gateway_world(tmp_path, vault_key_file=str(vault_key_file(tmp_path))) as world:
        await world.writers.begin_term()
        await world.writers.register("n1")
        await world.writers.register("n2")
        await world.ask("PUT", "/v1/secrets/hf-token", 201, json={"value": PLANTED})
        yield world


async def asked(
    world: World, node_id: str, job_id: str, attempt: int = 1, registry: bool = False
) -> dict[str, str] | str:
    """As an agent asks: the values, or why not."""
    private = PrivateKey.generate()
    key = bytes(private.public_key)
    question = msgspec.msgpack.encode(SecretAsk(JobId(job_id), attempt, key, registry))
    answer = msgspec.msgpack.decode(
        await world.bus.request(subjects.ask_secrets(node_id), question, 10), type=SecretAnswer
    )
    return answer.refused or msgspec.msgpack.decode(
        SealedBox(private).decrypt(answer.sealed), type=dict[str, str]
    )


async def test_only_the_node_of_the_present_attempt_is_given_the_secret_and_only_while_it_lives(
    tmp_path: Path,
) -> None:
    async with secret_world(tmp_path) as world:
        job = await world.run_to("placed", secrets={"HF_TOKEN": "hf-token"})
        assert await asked(world, "n1", job) == {"HF_TOKEN": PLANTED}
        assert "is not on node n2" in await asked(world, "n2", job)
        assert "attempt 2" in await asked(world, "n1", job, attempt=2)
        await world.writers.start(job, "n1")
        await world.writers.finish(job, "n1")
        await world.settle()
        assert "is over" in await asked(world, "n1", job)


async def test_a_new_value_is_given_from_then_on_and_a_removed_one_no_more(tmp_path: Path) -> None:
    async with secret_world(tmp_path) as world:
        job = await world.run_to("placed", secrets={"HF_TOKEN": "hf-token"})
        assert (await world.ask("PUT", "/v1/secrets/hf-token", json={"value": "other"}))[
            "version"
        ] == 2
        assert await asked(world, "n1", job) == {"HF_TOKEN": "other"}
        await world.ask("DELETE", "/v1/secrets/hf-token", 204)
        assert "has no secret hf-token" in await asked(world, "n1", job)


async def test_a_tenant_s_secrets_are_its_own(tmp_path: Path) -> None:
    async with secret_world(tmp_path) as world:
        await world.ask("PUT", "/v1/tenants/physics", 201, json={})
        async with world.as_("member", "ada", "physics") as ada:
            assert (await ada.ask("GET", "/v1/secrets"))["secrets"] == []
            await ada.ask("DELETE", "/v1/secrets/hf-token", 404)
            refused = await ada.ask(
                "POST",
                "/v1/jobs",
                422,
                json={"command": ["true"], "secrets": {"HF_TOKEN": "hf-token"}},
            )
            assert "tenant physics has no secret 'hf-token'" in refused["detail"]
            await ada.ask("PUT", "/v1/secrets/hf-token", 201, json={"value": "ada's"})
            job = (
                await ada.ask(
                    "POST",
                    "/v1/jobs",
                    201,
                    json={"command": ["true"], "secrets": {"HF_TOKEN": "hf-token"}},
                )
            )["id"]
        await world.writers.queue(job)
        await world.writers.place(job, "n1")
        await world.settle()
        assert await asked(world, "n1", job) == {"HF_TOKEN": "ada's"}


async def test_no_fact_of_the_log_holds_the_value_and_the_bucket_holds_it_sealed(
    tmp_path: Path,
) -> None:
    async with secret_world(tmp_path) as world:
        await world.run_to("completed", secrets={"HF_TOKEN": "hf-token"})
        assert PLANTED not in repr(await world.said())
        values = world.gateway.vault.store.values  # type: ignore[attr-defined]
        ((key, sealed),) = values.items()
        assert key.startswith("default.hf-token=") and PLANTED.encode() not in sealed


async def test_a_question_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    async with secret_world(tmp_path) as world:
        answer = await world.bus.request(subjects.ask_secrets("n1"), b"\xc1", 10)
        assert msgspec.msgpack.decode(answer, type=SecretAnswer).refused
        with pytest.raises(Unavailable):
            await world.bus.request("ask.secrets", b"", 0.1)


async def test_a_pull_is_given_the_credentials_of_its_registry_alone(tmp_path: Path) -> None:
    async with secret_world(tmp_path) as world:
        login = {"value": '{"username": "ann", "password": "p"}'}
        await world.ask("PUT", "/v1/secrets/registry.reg.example", 201, json=login)
        job = await world.run_to("placed", image="reg.example/x", secrets={"A": "hf-token"})
        other = await world.run_to("placed", "n2", image="other.example/x")
        assert await asked(world, "n1", job, registry=True) == {REGISTRY: login["value"]}
        assert await asked(world, "n1", job) == {"A": PLANTED}
        assert await asked(world, "n2", other, registry=True) == {}
        assert "is not on node n2" in await asked(world, "n2", job, registry=True)


async def test_credentials_that_cannot_be_read_are_a_refusal_and_do_not_end_the_agent() -> None:
    bus, values = MemoryBus(), {REGISTRY: "plain text"}

    async def answer(subject: str, data: bytes) -> bytes:
        key = PublicKey(msgspec.msgpack.decode(data, type=SecretAsk).public_key)
        sealed = SealedBox(key).encrypt(msgspec.msgpack.encode(values))
        return msgspec.msgpack.encode(SecretAnswer(sealed))

    await bus.subscribe(subjects.ask_secrets("n1"), answer)
    order = start_order(image="reg.example:5000/x", registry=True)
    with pytest.raises(Refused, match=r"secret registry\.reg\.example_5000 has no user name"):
        await registry_credentials(order, NodeId("n1"), bus)
    values[REGISTRY] = '{"username": "ann", "password": "p"}'
    assert await registry_credentials(order, NodeId("n1"), bus)


def start_order(image: str, registry: bool) -> StartOrder:
    return StartOrder(
        job_id=JobId("j"),
        attempt=1,
        incarnation=1,
        seq=1,
        rank=0,
        gpus=(),
        spec=JobSpec(command=("true",), image=image),
        tenant="default",
        user="ada",
        peers=(),
        port=0,
        registry=registry,
    )
