"""The gateway treats methods and numbers as the OpenAPI document says."""

from pathlib import Path

import pytest

from services.api_gateway.http.queries import SEQ_MAX
from tests.integration.gateway_world import gateway_world

pytestmark = pytest.mark.attack


async def test_a_method_that_is_not_taken_names_those_that_are(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        paths = (await world.ask("GET", "/openapi.json"))["paths"]
        for path in ("/v1/jobs", "/v1/cluster", "/v1/keys/{key_id}/rotate", "/v1/prune", "/livez"):
            async with world.session.request("OPTIONS", world.url + path) as answer:
                assert answer.status == 405
                allowed = {each.strip() for each in answer.headers["allow"].split(",")} - {"HEAD"}
                assert allowed == {method.upper() for method in paths[path]}


async def test_a_sequence_outside_its_bounds_is_a_422(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, settle_ms=1) as world:
        for seq in (-1, SEQ_MAX + 1, 1 << 63):
            for path in ("/v1/jobs", "/v1/cluster", "/v1/nodes"):
                problem = await world.ask("GET", f"{path}?min_seq={seq}", 422)
                assert "min_seq" in problem["detail"]


async def test_a_whole_number_may_be_written_with_a_point(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await world.ask(
            "POST", "/v1/deployments", 201, json={"name": "chat", "command": ["serve", "{port}"]}
        )
        await world.ask("PATCH", "/v1/deployments/chat", json={"replicas": 3.0})
        assert world.gateway.cluster.models["chat"].replicas == 3
        for replicas, said in (
            (1.5, "is not a whole number"),
            ("x", "is not a whole number"),
            (None, "missing"),
        ):
            assert (
                said
                in (
                    await world.ask(
                        "PATCH", "/v1/deployments/chat", 422, json={"replicas": replicas}
                    )
                )["detail"]
            )
