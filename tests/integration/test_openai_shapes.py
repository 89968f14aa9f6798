"""Errors as OpenAI's official client reads them: unknown routes, a wrong key, and a request that no
minute has room for.
"""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest

from libs.common import facts as f
from libs.common.model import TenantId
from services.api_gateway.http.app import ROUTERS
from services.api_gateway.openai.clients import FOREIGN
from tests.integration.gateway_world import KEY, World
from tests.integration.openai_world import CHAT, MESSAGES, error_of, model_world

pytestmark = pytest.mark.attack


@asynccontextmanager
async def client_world(tmp_path: Path) -> AsyncIterator[tuple[openai.AsyncOpenAI, World]]:
    async with (
        model_world(tmp_path) as (world, _),
        openai.AsyncOpenAI(base_url=world.url + "/v1", api_key=KEY, max_retries=0) as client,
    ):
        yield client, world


async def test_an_unknown_route_answers_openai_s_client_in_its_shape(tmp_path: Path) -> None:
    async with client_world(tmp_path) as (client, _):
        with pytest.raises(openai.NotFoundError) as missing:
            await client.moderations.create(input="hello")
        assert (
            missing.value.code == "not_found"
            and "POST /v1/moderations: no such route" in missing.value.message
        )
        with pytest.raises(openai.NotFoundError) as made_up:
            await client.get("/no/such/thing", cast_to=object)
        assert made_up.value.code == "not_found" and "/v1/no/such/thing" in made_up.value.message


async def test_a_refusal_of_muster_s_own_route_answers_openai_s_client_in_its_shape(
    tmp_path: Path,
) -> None:
    async with client_world(tmp_path) as (client, _):
        with pytest.raises(openai.NotFoundError) as missing:
            await client.get("/jobs/none", cast_to=object)
        assert missing.value.type == "invalid_request_error" and missing.value.body is not None


async def test_a_path_of_openai_s_api_answers_any_client_in_its_shape(tmp_path: Path) -> None:
    async with client_world(tmp_path) as (_, world):
        for path in ("/v1/moderations", "/v1/audio/other", "/v1/chat/other"):
            async with world.session.post(world.url + path, json={}) as response:
                assert (await error_of(response, 404))["code"] == "not_found"
            async with world.session.post(
                world.url + path, json={}, headers={"authorization": "Bearer wrong"}
            ) as response:
                assert (await error_of(response, 401))["code"] == "invalid_api_key"


async def test_other_clients_get_problem_details_for_other_paths(tmp_path: Path) -> None:
    async with (
        client_world(tmp_path) as (_, world),
        world.session.get(world.url + "/v1/nothing") as response,
    ):
        assert response.status == 404 and response.content_type == "application/problem+json"


async def test_a_wrong_key_gets_the_words_of_openai(tmp_path: Path) -> None:
    async with client_world(tmp_path) as (client, _):
        for call in (
            client.with_options(api_key="wrong").models.list,
            client.with_options(api_key="wrong").files.list,
        ):
            with pytest.raises(openai.AuthenticationError, match="Incorrect API key provided"):
                await call()


async def test_a_request_that_no_minute_has_room_for_is_refused_once_and_for_good(
    tmp_path: Path,
) -> None:
    async with client_world(tmp_path) as (client, world):
        await world.gateway.record(f.TenantSet(tenant=TenantId("default"), tokens_per_minute=500))
        patient = client.with_options(max_retries=2)
        before = world.gateway.telemetry.registry.get_sample_value(
            "muster_model_requests_total", {"model": "m"}
        )
        with pytest.raises(
            openai.BadRequestError,
            match="may use 500 tokens a minute, and this request alone may need",
        ) as refused:
            await patient.chat.completions.create(model="m", messages=MESSAGES, max_tokens=1_000)
        assert (
            refused.value.code == "tokens_over_limit"
            and refused.value.response.headers["x-should-retry"] == "false"
        )
        assert (
            world.gateway.telemetry.registry.get_sample_value(
                "muster_model_requests_total", {"model": "m"}
            )
            == before
        )


async def test_a_large_image_of_a_small_size_fits_a_small_limit(tmp_path: Path) -> None:
    """The limits' own answer is quota's, which does not run here: the request gets as far as asking
    it.
    """
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (512).to_bytes(4) + (512).to_bytes(4)
    picture = "data:image/png;base64," + base64.b64encode(head + bytes(600_000)).decode()
    async with client_world(tmp_path) as (_, world):
        await world.gateway.record(f.TenantSet(tenant=TenantId("default"), tokens_per_minute=2_000))
        content = [{"type": "image_url", "image_url": {"url": picture}}]
        body = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": content}]}
        async with world.session.post(world.url + CHAT, json=body) as response:
            assert (await error_of(response, 503))["code"] == "limits_unavailable"


def test_no_route_of_muster_s_own_is_taken_for_openai_s() -> None:
    paths = [route.path for router in ROUTERS for route in router.routes]  # type: ignore[attr-defined]
    assert [
        path for path in paths if path.startswith("/v1/") and path.split("/")[2] in FOREIGN
    ] == []
