"""The OpenAI surface over real sockets: what goes to the replica, what comes back, what is refused,
and what is metered.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from libs.common import facts as f
from libs.common.model import Gpu, GpuHold, GpuId, JobId, JobSpec, Member, NodeId, Serve
from libs.common.model_spec import ModelSpec
from libs.common.model_spec import Replica as ReplicaJob
from services.api_gateway.access.auth import Principal
from tests.integration.gateway_world import gateway_world
from tests.integration.openai_replica import running
from tests.integration.openai_world import CHAT, MESSAGES, error_of, model_world


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings"])
async def test_the_body_reaches_the_replica_byte_for_byte_and_its_answer_the_client(
    tmp_path: Path, path: str
) -> None:
    messages = b'[{"role":"user","content":"\\u00e9 \xc3\xa9"}]'
    body = (
        b'{ "model":"m", "messages":'
        + messages
        + b',"prompt":"p", "input":"i","temperature":1.50,"x_new":{"a":[null]}}'
    )
    async with model_world(tmp_path) as (world, replica):
        async with world.session.post(world.url + path, data=body) as response:
            answer = await response.json()
            assert (
                response.status == 200
                and answer["model"] == "m"
                and answer["usage"]["prompt_tokens"] == 5
            )
        assert replica.bodies == [body]


async def test_a_stream_is_passed_on_unchanged_with_its_tools(tmp_path: Path) -> None:
    async with model_world(tmp_path) as (world, replica):
        async with aiohttp.ClientSession() as direct:
            body = {
                "model": "m",
                "messages": MESSAGES,
                "stream": True,
                "stream_options": {"include_usage": True},
                "x_chunks": 20,
            }
            async with direct.post(f"http://127.0.0.1:{replica.port}{CHAT}", json=body) as response:
                expected = await response.read()
        async with world.session.post(world.url + CHAT, json=body) as response:
            assert response.content_type == "text/event-stream"
            assert await response.read() == expected
        tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
        answer = await world.ask(
            "POST", CHAT, json={"model": "m", "messages": MESSAGES, "tools": tools}
        )
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"


async def test_the_events_of_a_stream_come_without_delay(tmp_path: Path) -> None:
    async with model_world(tmp_path) as (world, _):
        body = {"model": "m", "messages": MESSAGES, "stream": True, "x_chunks": 3, "x_gap_s": 0.3}
        clock = asyncio.get_running_loop().time
        async with world.session.post(world.url + CHAT, json=body) as response:
            await response.content.readany()
            first = clock()
            await response.content.read()
            assert clock() - first > 0.5


async def test_the_key_is_not_forwarded_but_the_request_id_and_trace_are(tmp_path: Path) -> None:
    async with model_world(tmp_path) as (world, replica):
        headers = {"x-request-id": "mine-1", "traceparent": "00-1-2-01", "cookie": "a=b"}
        async with world.session.post(
            world.url + CHAT, json={"model": "m"}, headers=headers
        ) as response:
            assert response.headers["x-request-id"] == "mine-1"
            assert response.headers["openai-processing-ms"].isdigit()
            assert response.headers["x-muster-replica"] == "m-0"
        sent = replica.headers[0]
        assert (sent["x-request-id"], sent["traceparent"]) == ("mine-1", "00-1-2-01")
        assert not {"authorization", "cookie", "accept-encoding"} & set(sent)
        async with world.session.post(
            world.url + CHAT, json={"model": "m"}, headers={"x-request-id": "not\tsane"}
        ) as response:
            assert response.headers["x-request-id"].count("-") == 4


async def test_models_are_listed_and_shown(tmp_path: Path) -> None:
    async with model_world(tmp_path) as (world, _):
        listed = await world.ask("GET", "/v1/models")
        assert listed["object"] == "list"
        assert [each["id"] for each in listed["data"]] == ["m", "cold", "theirs"]
        shown = await world.ask("GET", "/v1/models/m")
        assert shown == {
            "id": "m",
            "object": "model",
            "created": 1_700_000_000,
            "owned_by": "default",
        }


async def test_a_deployed_model_is_served_while_its_replica_is_ready(tmp_path: Path) -> None:
    node, job = NodeId("n1"), JobId("chat-1")
    gpu = Gpu(uuid=GpuId("n1-g0"), index=0, vendor="nvidia", model="H100", memory_bytes=80 << 30)
    async with gateway_world(tmp_path) as world, running() as replica:
        writers = world.writers
        await writers.begin_term()
        await writers.on(
            "n1", f.NodeRegistered(node_id=node, incarnation=1, address="127.0.0.1", gpus=(gpu,))
        )
        await world.gateway.record(
            f.ModelDeployed(name="chat", spec=ModelSpec(command=("serve", "{port}")))
        )
        spec = JobSpec(command=("serve",), serve=Serve("chat", 1))
        await writers.schedule(
            f.ReplicasScaled(model="chat", generation=1, add=(ReplicaJob(job, spec),))
        )
        members = (Member(node, 1, 0, (GpuHold(gpu.uuid),)),)
        await writers.schedule(
            f.JobPlaced(job_id=job, attempt=1, members=members, port=replica.port)
        )
        await writers.start("chat-1", "n1")
        await world.settle()
        async with world.session.post(world.url + CHAT, json={"model": "chat"}) as response:
            assert "1 of 1 are starting" in (await error_of(response, 503))["message"]
        await writers.on("n1", f.ReplicaReady(job_id=job, attempt=1, node_id=node))
        await world.settle()
        assert (await world.ask("POST", CHAT, json={"model": "chat"}))["model"] == "chat"
        assert [each["id"] for each in (await world.ask("GET", "/v1/models"))["data"]] == ["chat"]
        await writers.on(
            "n1", f.ReplicaUnready(job_id=job, attempt=1, node_id=node, reason="no answer")
        )
        await world.settle()  # it runs and was ready: better a late answer than none
        assert (await world.ask("POST", CHAT, json={"model": "chat"}))["model"] == "chat"


async def test_a_member_can_neither_see_nor_call_a_model_of_another_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with model_world(tmp_path) as (world, _):
        member = Principal("k", "default", "ann", "member")
        monkeypatch.setattr(world.gateway.keys, "principal", lambda *_: (member, ""))
        assert [each["id"] for each in (await world.ask("GET", "/v1/models"))["data"]] == [
            "m",
            "cold",
        ]
        for method, path in (("GET", "/v1/models/theirs"), ("POST", CHAT)):
            async with world.session.request(
                method, world.url + path, json={"model": "theirs"}
            ) as response:
                assert (await error_of(response, 404))["code"] == "model_not_found"


class TestRefusals:
    async def test_a_request_without_a_key_is_a_401_in_openai_shape(self, tmp_path: Path) -> None:
        async with model_world(tmp_path) as (world, replica):
            for key in ("", "Bearer wrong"):
                async with world.session.post(
                    world.url + CHAT, json={"model": "m"}, headers={"authorization": key}
                ) as response:
                    assert (await error_of(response, 401))["code"] == "invalid_api_key"
            assert replica.bodies == []

    async def test_an_unknown_model_is_a_404(self, tmp_path: Path) -> None:
        async with (
            model_world(tmp_path) as (world, _),
            world.session.post(world.url + CHAT, json={"model": "gone"}) as response,
        ):
            error = await error_of(response, 404)
            assert (error["code"], error["param"]) == (
                "model_not_found",
                "model",
            ) and "gone" in error["message"]

    async def test_a_malformed_body_is_a_400(self, tmp_path: Path) -> None:
        async with (
            model_world(tmp_path) as (world, _),
            world.session.post(world.url + CHAT, data=b'{"model":') as response,
        ):
            assert (await error_of(response, 400))["type"] == "invalid_request_error"

    async def test_a_wrong_method_is_a_405(self, tmp_path: Path) -> None:
        async with (
            model_world(tmp_path) as (world, _),
            world.session.get(world.url + CHAT) as response,
        ):
            await error_of(response, 405)
            assert response.headers["allow"] == "POST"

    async def test_a_too_large_body_is_a_413_with_and_without_a_stated_length(
        self, tmp_path: Path
    ) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"x" * 1_000

        async with model_world(tmp_path, model_body_bytes=2_000) as (world, _):
            for data in (b"x" * 2_001, pieces()):
                async with world.session.post(world.url + CHAT, data=data) as response:
                    assert (await error_of(response, 413))["code"] == "request_too_large"

    async def test_a_body_above_the_bound_of_other_routes_is_accepted(self, tmp_path: Path) -> None:
        async with model_world(tmp_path) as (world, replica):
            content = "x" * (3 << 20)
            await world.ask(
                "POST",
                CHAT,
                json={"model": "m", "messages": [{"role": "user", "content": content}]},
            )
            assert len(replica.bodies[0]) > len(content)

    async def test_a_model_without_a_ready_replica_is_a_503_with_the_number_that_start(
        self, tmp_path: Path
    ) -> None:
        async with (
            model_world(tmp_path) as (world, _),
            world.session.post(world.url + CHAT, json={"model": "cold"}) as response,
        ):
            error = await error_of(response, 503)
            assert "2 of 2 are starting" in error["message"] and error["code"] == "model_not_ready"
            assert int(response.headers["retry-after"]) > 0

    async def test_a_request_beyond_the_bound_of_open_requests_is_a_503(
        self, tmp_path: Path
    ) -> None:
        async with model_world(tmp_path, model_requests_max=1) as (world, replica):
            slow = asyncio.create_task(
                world.ask("POST", CHAT, json={"model": "m", "x_delay_s": 0.5})
            )
            while not replica.bodies:
                await asyncio.sleep(0.01)
            async with world.session.post(world.url + CHAT, json={"model": "m"}) as response:
                assert (await error_of(response, 503))["code"] == "overloaded"
                assert response.headers["retry-after"] == "1"
            await slow
            await world.ask("POST", CHAT, json={"model": "m"})

    async def test_a_body_that_does_not_arrive_in_time_is_a_408(self, tmp_path: Path) -> None:
        async def never() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(5)

        async with (
            model_world(tmp_path, model_body_ms=100) as (world, _),
            world.session.post(world.url + CHAT, data=never()) as response,
        ):
            await error_of(response, 408)

    async def test_an_error_of_the_replica_is_passed_on(self, tmp_path: Path) -> None:
        async with model_world(tmp_path) as (world, replica):
            own = {
                "error": {
                    "message": "too long",
                    "type": "x",
                    "param": "messages",
                    "code": "context_length_exceeded",
                }
            }
            async with world.session.post(
                world.url + CHAT, json={"model": "m", "x_status": 400, "x_body": own}
            ) as response:
                assert response.status == 400 and await response.json() == own
            other = {"object": "error", "message": "no such adapter", "code": 404}
            async with world.session.post(
                world.url + CHAT, json={"model": "m", "x_status": 404, "x_body": other}
            ) as response:
                assert (await error_of(response, 404))["message"] == "no such adapter"
            assert len(replica.bodies) == 2
