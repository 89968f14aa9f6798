"""Idempotency-Key: a repeated request is given what the first one made, by whichever gateway, and
another body is told apart.
"""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from libs.common import facts as f
from libs.common.transport.log_memory import MemoryStream
from tests.integration.gateway_world import Json, World, gateway_world


async def post(
    world: World, path: str, body: Json, key: str | None = "8f14e45f-ea8b"
) -> tuple[int, bool, Json]:
    headers = {} if key is None else {"idempotency-key": key}
    async with world.session.post(world.url + path, json=body, headers=headers) as response:
        return (
            response.status,
            response.headers.get("idempotent-replayed") == "true",
            await response.json(),
        )


async def test_a_repeated_submission_is_one_job(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        first = await post(world, "/v1/jobs", {"command": ["true"], "gpus": 1})
        again = await post(world, "/v1/jobs", {"gpus": 1, "command": ["true"]})
        assert (first[:2], again[:2]) == ((201, False), (200, True))
        assert first[2] == again[2]
        assert [each for each in await world.said() if getattr(each, "job_id", "")] == (
            await world.said()
        )[:1]
        assert (await post(world, "/v1/jobs", {"command": ["true"], "gpus": 1}, "other"))[2][
            "id"
        ] != first[2]["id"]


@pytest.mark.attack
@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/jobs", {"command": ["true"]}, "job.submitted"),
        ("/v1/allocations", {"gpus": 1}, "job.submitted"),
        ("/v1/keys", {"user": "ada"}, "key.created"),
        ("/v1/deployments", {"name": "chat", "command": ["serve", "{port}"]}, "model.deployed"),
    ],
)
async def test_requests_that_arrive_together_record_one_fact(
    tmp_path: Path, path: str, body: Json, kind: str
) -> None:
    async with gateway_world(tmp_path) as world:
        answers = await asyncio.gather(*(post(world, path, body) for _ in range(16)))
        assert sorted(answer[0] for answer in answers) == [200] * 15 + [201]
        assert [f.kind_of(fact) for fact in await world.said()].count(kind) == 1
        assert len(world.gateway.claims) == 0


async def test_another_body_under_the_same_key_is_refused(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await post(world, "/v1/jobs", {"command": ["true"]})
        status, _, problem = await post(world, "/v1/jobs", {"command": ["false"]})
        assert status == 409 and "another request" in problem["detail"]


async def test_two_gateways_at_the_same_moment_make_one_job(tmp_path: Path) -> None:
    stream = MemoryStream()
    async with (
        gateway_world(tmp_path, stream) as world,
        gateway_world(tmp_path, stream, instance="b") as other,
    ):
        answers = await asyncio.gather(
            *(post(each, "/v1/jobs", {"command": ["true"]}) for each in (world, other) * 4)
        )
        assert len({answer[2]["id"] for answer in answers}) == 1
        assert {answer[0] for answer in answers} == {200, 201}
        assert [answer[1] for answer in answers] == [answer[0] == 200 for answer in answers]
        assert [job.job_id for job in world.gateway.cluster.jobs.values()] == [answers[0][2]["id"]]


async def test_two_bodies_at_the_same_moment_are_one_job_and_one_refusal(tmp_path: Path) -> None:
    stream = MemoryStream()
    async with (
        gateway_world(tmp_path, stream) as world,
        gateway_world(tmp_path, stream, instance="b") as other,
    ):
        for key, second in (("one", world), ("two", other)):
            bodies = ((world, {"command": ["a"]}), (second, {"command": ["b"]}))
            answers = await asyncio.gather(
                *(post(each, "/v1/jobs", body, key) for each, body in bodies)
            )
            assert sorted(answer[0] for answer in answers) == [201, 409]


async def test_the_same_key_of_another_tenant_is_another_job(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await world.ask("PUT", "/v1/tenants/physics", 201)
        own = await post(world, "/v1/jobs", {"command": ["true"]})
        async with world.as_("member", "ada", "physics") as ada:
            theirs = await post(ada, "/v1/jobs", {"command": ["true"]})
        assert (own[0], theirs[0], own[2]["id"] == theirs[2]["id"]) == (201, 201, False)


async def test_without_the_header_every_submission_is_its_own_job(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        one, two = [await post(world, "/v1/jobs", {"command": ["true"]}, None) for _ in range(2)]
        assert (one[0], two[0], one[2]["id"] == two[2]["id"]) == (201, 201, False)


async def test_a_repeated_key_is_made_once_and_its_secret_is_not_shown_again(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world:
        first = await post(world, "/v1/keys", {"user": "ada"})
        again = await post(world, "/v1/keys", {"user": "ada"})
        assert (first[:2], again[:2]) == ((201, False), (200, True))
        assert again[2] == {name: value for name, value in first[2].items() if name != "key"}
        assert (await post(world, "/v1/keys", {"user": "bob"}))[0] == 409


async def test_a_repeated_deployment_is_one_generation_by_whichever_gateway(tmp_path: Path) -> None:
    stream, model = MemoryStream(), {"name": "chat", "command": ["serve", "{port}"]}
    async with (
        gateway_world(tmp_path, stream) as world,
        gateway_world(tmp_path, stream, instance="b") as other,
    ):
        answers = await asyncio.gather(
            post(world, "/v1/deployments", model), post(other, "/v1/deployments", model)
        )
        assert {answer[0] for answer in answers} <= {200, 201} and {
            answer[2]["generation"] for answer in answers
        } == {1}
        assert (await post(world, "/v1/deployments", model))[:2] == (200, True)
        assert (await post(world, "/v1/deployments", {**model, "gpus": 2}))[0] == 409
        assert (await post(world, "/v1/deployments", model, None))[0] == 409


async def test_another_tenant_s_model_is_not_shown_to_the_same_request(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "json": {"name": "chat", "command": ["serve", "{port}"]},
        "headers": {"idempotency-key": "k"},
    }
    async with gateway_world(tmp_path) as world:
        await world.ask("PUT", "/v1/tenants/physics", 201)
        async with (
            world.as_("member", "svc") as ours,
            world.as_("member", "svc", "physics") as theirs,
            world.as_("admin", "svc", "physics") as all_,
        ):
            await ours.ask("POST", "/v1/deployments", 201, **asked)
            await ours.ask("POST", "/v1/deployments", 200, **asked)
            assert (
                "model names are unique in the cluster"
                in (await theirs.ask("POST", "/v1/deployments", 409, **asked))["detail"]
            )
            assert (
                "deployed already"
                in (await all_.ask("POST", "/v1/deployments", 409, **asked))["detail"]
            )


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "é"])
async def test_a_header_that_is_no_key_is_refused(tmp_path: Path, key: str) -> None:
    async with gateway_world(tmp_path) as world, aiohttp.ClientSession() as session:
        headers = {"idempotency-key": key, "authorization": "Bearer test-key"}
        async with session.post(
            world.url + "/v1/jobs", json={"command": ["true"]}, headers=headers
        ) as response:
            assert response.status == 422
