"""A gateway with models whose replicas the test controls, and the requests that tests send."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from libs.common import facts as f
from libs.common.model import JobId, NodeId
from libs.common.model_spec import Replica as Started
from libs.common.state import model_view
from libs.common.state.cluster import Endpoint
from services.api_gateway.access.auth import Principal
from services.api_gateway.openai.catalogue import Listed, Served
from services.api_gateway.openai.errors import RateLimited
from services.api_gateway.openai.metering import Grant
from tests.given import member, registered
from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_replica import Replica, running

CHAT = "/v1/chat/completions"


MESSAGES = [{"role": "user", "content": "hi"}]


def served(
    *ports: int, name: str = "m", tenant: str = "default"
) -> tuple[Served, tuple[Endpoint, ...], str]:
    ready = tuple(Endpoint(JobId(f"{name}-{i}"), "127.0.0.1", port) for i, port in enumerate(ports))
    return Served(name, tenant, 1_700_000_000), ready, "2 of 2 are starting"


@asynccontextmanager
async def model_world(tmp_path: Path, **changed: Any) -> AsyncIterator[tuple[World, Replica]]:
    async with gateway_world(tmp_path, **changed) as world, running() as replica:
        world.gateway.models = Listed(
            served(replica.port), served(name="cold"), served(name="theirs", tenant="other")
        )
        yield world, replica


async def error_of(response: aiohttp.ClientResponse, status: int) -> dict[str, Any]:
    assert response.status == status, await response.text()
    body = await response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


class Ledger:
    """A meter for tests: one budget, nothing refilled."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.reserved: list[int] = []
        self.settled: list[int | None] = []

    def counts(self, principal: Principal, model: str) -> bool:
        return True

    async def reserve(self, principal: Principal, model: str, tokens: int) -> Grant:
        if tokens > self.left:
            raise RateLimited(
                "tokens",
                f"{tokens} tokens are over the {self.left} left",
                7,
                ((b"x-ratelimit-remaining-tokens", b"%d" % self.left),),
            )
        self.left -= tokens
        self.reserved.append(tokens)
        return Grant(
            principal.tenant, model, tokens, ((b"x-ratelimit-remaining-tokens", b"%d" % self.left),)
        )

    def settle(self, grant: Grant, tokens: int | None) -> None:
        self.settled.append(tokens)
        self.left += grant.tokens - (grant.tokens if tokens is None else tokens)


async def add_replicas(world: World, name: str, *replicas: Replica) -> None:
    """Give a deployed model these replicas, ready, as the scheduler and an agent would."""
    if world.writers.epoch == 0:
        await world.writers.begin_term()
        await world.writers.on("n1", registered("n1", gpus=8))
        await world.settle()
    cluster = world.gateway.cluster
    model = cluster.models[name]
    first = model.next_ordinal
    jobs = [JobId(f"{name}-{first + number}") for number in range(len(replicas))]
    spec = model_view.replica_spec(model.spec, name, model.generation)
    added = tuple(Started(job, spec) for job in jobs)
    await world.writers.schedule(
        f.ReplicasScaled(model=name, generation=model.generation, add=added, tenant=model.tenant)
    )
    for job, replica in zip(jobs, replicas, strict=True):
        gpu = sum(1 for each in cluster.gpus.values() if each.holds)
        members = (member("n1", gpu),)
        await world.writers.schedule(
            f.JobPlaced(job_id=job, attempt=1, members=members, port=replica.port)
        )
        node = NodeId("n1")
        await world.writers.on("n1", f.JobStarted(job_id=job, attempt=1, node_id=node))
        await world.writers.on("n1", f.ReplicaReady(job_id=job, attempt=1, node_id=node))
        await world.settle()
