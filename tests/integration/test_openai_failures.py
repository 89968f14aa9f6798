"""Failures between client and replica.

A client disconnects; a replica refuses, dies, is silent, or is killed under load.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from libs.embedded.living import die_with_parent
from libs.embedded.servers import free_ports
from services.api_gateway.openai.catalogue import Listed
from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_replica import Replica, cut, running
from tests.integration.openai_world import CHAT, error_of, served
from tests.tidy import ROOT

SETTLE_S = 5.0


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SETTLE_S):
        while not true():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def replicas_world(
    tmp_path: Path, count: int, dead: int = 0, **changed: Any
) -> AsyncIterator[tuple[World, list[Replica]]]:
    """Run a gateway with `count` replicas; addresses of `dead` replicas come first."""
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(gateway_world(tmp_path, **changed))
        replicas = [await stack.enter_async_context(running()) for _ in range(count)]
        world.gateway.models = Listed(
            served(*free_ports(dead), *(replica.port for replica in replicas))
        )
        yield world, replicas


def retries(world: World) -> float:
    return (
        world.gateway.telemetry.registry.get_sample_value(
            "muster_model_retries_total", {"model": "m"}
        )
        or 0.0
    )


def counted(world: World, status: str, stream: str) -> float | None:
    labels = {"model": "m", "route": CHAT, "status": status, "stream": stream}
    return world.gateway.telemetry.registry.get_sample_value("muster_model_requests_total", labels)


class TestTheClientLeaves:
    async def test_a_stream_is_cancelled_at_the_replica(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1) as (world, [replica]):
            body = {"model": "m", "stream": True, "x_chunks": 1_000, "x_gap_s": 0.02}
            async with world.session.post(world.url + CHAT, json=body) as response:
                await response.content.readany()
                response.close()
            await until(lambda: replica.cancelled == 1)
            await until(lambda: counted(world, "499", "true") == 1.0)

    async def test_a_request_without_a_stream_is_cancelled_too(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1) as (world, [replica]):
            call = asyncio.create_task(
                world.ask("POST", CHAT, json={"model": "m", "x_delay_s": 30})
            )
            await until(lambda: len(replica.bodies) == 1)
            call.cancel()
            await until(lambda: replica.cancelled == 1)
            await until(lambda: counted(world, "499", "false") == 1.0)

    async def test_request_of_a_connected_client_is_not_cancelled(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1) as (world, [replica]):
            for _ in range(3):
                await world.ask("POST", CHAT, json={"model": "m"})
            assert replica.cancelled == 0


class TestAnotherReplicaIsTried:
    async def test_when_the_first_replica_does_not_listen(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1, dead=1) as (world, [replica]):
            for _ in range(10):
                await world.ask("POST", CHAT, json={"model": "m"})
            assert len(replica.bodies) == 10 and 1 <= retries(world) < 10

    @pytest.mark.parametrize(
        ("dies", "stream"), [("before", False), ("before", True), ("head", True)]
    )
    async def test_when_the_first_dies_before_its_first_event(
        self, tmp_path: Path, dies: str, stream: bool
    ) -> None:
        async with replicas_world(tmp_path, 2) as (world, replicas):
            async with world.session.post(
                world.url + CHAT, json={"model": "m", "stream": stream, "x_die": dies}
            ) as response:
                assert (await error_of(response, 502))["code"] == "upstream_error"
            assert [len(replica.bodies) for replica in replicas] == [1, 1]

    async def test_when_the_first_answers_503_and_a_last_503_is_passed_on(
        self, tmp_path: Path
    ) -> None:
        async with replicas_world(tmp_path, 2) as (world, replicas):
            async with world.session.post(
                world.url + CHAT, json={"model": "m", "x_status": 503}
            ) as response:
                assert (response.status, await response.json()) == (
                    503,
                    {"error": {"message": "as asked"}},
                )
            assert [len(replica.bodies) for replica in replicas] == [1, 1]

    async def test_but_never_more_than_so_many(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 4, model_attempts=2) as (world, replicas):
            await world.ask("POST", CHAT, 502, json={"model": "m", "x_die": "before"})
            assert sum(len(replica.bodies) for replica in replicas) == 2

    async def test_but_not_for_a_refusal_that_all_would_give(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 2) as (world, replicas):
            await world.ask("POST", CHAT, 400, json={"model": "m", "x_status": 400})
            await world.ask("POST", CHAT, 500, json={"model": "m", "x_status": 500})
            assert sum(len(replica.bodies) for replica in replicas) == 2

    async def test_but_not_once_the_client_has_an_event_and_the_stream_ends_with_an_error(
        self, tmp_path: Path
    ) -> None:
        async with replicas_world(tmp_path, 2) as (world, replicas):
            async with world.session.post(
                world.url + CHAT, json={"model": "m", "stream": True, "x_die": "middle"}
            ) as response:
                events = (await response.text()).strip().split("\n\n")
            assert sum(len(replica.bodies) for replica in replicas) == 1
            assert json.loads(events[0].removeprefix("data: "))["choices"] and len(events) == 2
            assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == "upstream_error"
            assert counted(world, "502", "true") == 1.0


class Commenting(Replica):
    """A replica that ends streams after a comment, as the next step of its script says."""

    def __init__(self, script: list[str]) -> None:
        super().__init__()
        self.script = script

    async def _stream(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        step = self.script.pop(0) if self.script else ""
        if not step:
            return await super()._stream(request, asked)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": ping - data:\n\n")
        await asyncio.sleep(0.05)
        if step == "cut":
            cut(request)
        if step == "half":
            await response.write(b'data: {"choices":[{"finish_reason":"stop"')
        return response


@pytest.mark.parametrize("step", ["cut", "end", "half"])
@pytest.mark.parametrize(("failures", "end"), [(1, "[DONE]"), (2, "upstream_error")])
async def test_a_stream_that_broke_after_a_comment_may_still_come_from_another_replica(
    tmp_path: Path, step: str, failures: int, end: str
) -> None:
    script = [step] * failures
    async with (
        gateway_world(tmp_path) as world,
        running(replica=Commenting(script)) as first,
        running(replica=Commenting(script)) as second,
    ):
        world.gateway.models = Listed(served(first.port, second.port))
        body = {"model": "m", "stream": True, "x_finish": 1}
        async with world.session.post(world.url + CHAT, json=body) as response:
            assert response.status == 200
            events = (await response.text()).strip().split("\n\n")
        assert events[:failures] == [": ping - data:"] * failures and end in events[-1]
        assert len(events) == failures + (5 if failures == 1 else 1)
        assert [len(first.bodies), len(second.bodies)] == [1, 1]


class TestTheReplicaIsSilent:
    async def test_until_its_answer_it_is_a_504_and_its_work_is_cancelled(
        self, tmp_path: Path
    ) -> None:
        async with replicas_world(tmp_path, 2, model_answer_ms=150) as (world, replicas):
            async with world.session.post(
                world.url + CHAT, json={"model": "m", "x_delay_s": 30}
            ) as response:
                assert (await error_of(response, 504))["code"] == "timeout"
            await until(lambda: sum(replica.cancelled for replica in replicas) == 1)
            await world.ask("POST", CHAT, json={"model": "m"})

    async def test_within_its_stream_the_stream_ends_with_an_error(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1, model_idle_ms=150) as (world, [replica]):
            async with world.session.post(
                world.url + CHAT, json={"model": "m", "stream": True, "x_gap_s": 30}
            ) as response:
                assert (
                    json.loads(
                        (await response.text()).strip().split("\n\n")[-1].removeprefix("data: ")
                    )["error"]["code"]
                    == "timeout"
                )
            await until(lambda: replica.cancelled == 1)

    async def test_a_slow_stream_is_not_silent(self, tmp_path: Path) -> None:
        async with (
            replicas_world(tmp_path, 1, model_idle_ms=300, model_answer_ms=300) as (world, _),
            world.session.post(
                world.url + CHAT, json={"model": "m", "stream": True, "x_gap_s": 0.1, "x_chunks": 8}
            ) as response,
        ):
            assert (await response.text()).endswith("data: [DONE]\n\n")


async def test_a_stream_that_ends_before_done_ends_with_an_error(tmp_path: Path) -> None:
    async with (
        replicas_world(tmp_path, 1) as (world, _),
        world.session.post(
            world.url + CHAT, json={"model": "m", "stream": True, "x_no_done": True}
        ) as response,
    ):
        assert "before [DONE]" in (await response.text()).strip().split("\n\n")[-1]


async def test_an_idle_connection_that_the_replica_closed_costs_nothing(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world, running(keepalive_s=0.1) as replica:
        world.gateway.models = Listed(served(replica.port))
        for _ in range(3):
            await world.ask("POST", CHAT, json={"model": "m"})
            await asyncio.sleep(0.3)
        assert len(replica.bodies) == 3 and retries(world) == 0


async def test_an_answer_over_its_bound_is_a_502(tmp_path: Path) -> None:
    async with (
        replicas_world(tmp_path, 1, model_answer_bytes=100) as (world, _),
        world.session.post(world.url + CHAT, json={"model": "m"}) as response,
    ):
        assert (await error_of(response, 502))["code"] == "answer_too_large"


async def test_requests_continue_while_the_log_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a stream's election, or with the scheduler dead: the fold stays, and no request asks
    the log.
    """

    async def silent(*_: object) -> Any:
        await asyncio.Event().wait()

    async with replicas_world(tmp_path, 1) as (world, _):
        for name in ("append", "last", "get", "bounds"):
            monkeypatch.setattr(world.log, name, silent)
        await world.ask("POST", CHAT, json={"model": "m"})
        async with world.session.post(
            world.url + CHAT, json={"model": "m", "stream": True}
        ) as response:
            assert (await response.text()).endswith("data: [DONE]\n\n")
        assert [each["id"] for each in (await world.ask("GET", "/v1/models"))["data"]] == ["m"]


async def _process(port: int) -> asyncio.subprocess.Process:
    line = (sys.executable, "-m", "tests.integration.openai_replica", str(port))
    process = await asyncio.create_subprocess_exec(*line, cwd=ROOT, preexec_fn=die_with_parent())
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return process
            except OSError:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_replica_killed_under_load_loses_no_request_of_which_nothing_was_sent(
    tmp_path: Path, stream: bool
) -> None:
    """A stream that had begun ends with an error object; every other request is answered whole by
    the replica that is left.
    """
    ports = free_ports(2)
    processes = [await _process(port) for port in ports]
    answers: list[str] = []
    stop = asyncio.Event()

    async def load(world: World, client: int) -> None:
        while not stop.is_set():
            body = {"model": "m", "stream": stream, "x_delay_s": 0.01, "x_gap_s": 0.005}
            async with world.session.post(world.url + CHAT, json=body) as response:
                assert response.status == 200
                answers.append(await response.text())

    async with gateway_world(tmp_path) as world:
        world.gateway.models = Listed(served(*ports))
        clients = [asyncio.create_task(load(world, number)) for number in range(16)]
        await until(lambda: len(answers) > 100)
        processes[0].kill()
        before = len(answers)
        await until(lambda: len(answers) > before + 200)
        stop.set()
        await asyncio.gather(*clients)
        whole = [
            text
            for text in answers
            if (text.endswith("data: [DONE]\n\n") if stream else json.loads(text)["choices"])
        ]
        broken = [text for text in answers if "upstream_error" in text]
        assert len(whole) + len(broken) == len(answers)
        assert all(text.startswith('data: {"id"') for text in broken) and len(broken) <= (
            16 if stream else 0
        )
        assert retries(world) + len(broken) >= 1
    processes[1].kill()
    for process in processes:
        await process.wait()


async def test_a_client_that_does_not_read_holds_up_its_own_replica_not_the_gateway_s_memory(
    tmp_path: Path,
) -> None:
    async with replicas_world(tmp_path, 1) as (world, [replica]):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(world.url.rsplit(":", 1)[1]), limit=1 << 10
        )
        body = json.dumps({"model": "m", "stream": True, "x_chunks": 200_000, "x_id": 1}).encode()
        key = world.session.headers["authorization"]
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: {key}\r\ncontent-length: "
            f"{len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await reader.readline()
        await asyncio.sleep(1.0)
        assert retries(world) == 0 and replica.cancelled == 0
        await world.ask("POST", CHAT, json={"model": "m"})
        writer.close()
        await until(lambda: replica.cancelled == 1)


async def test_a_try_after_comments_has_the_patience_of_an_answer(tmp_path: Path) -> None:
    """Comments begin no answer: the next replica may take as long as the first one."""

    class FailsFirst(Replica):
        async def _stream(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            await response.write(b": working\n\n")
            await asyncio.sleep(0.1)
            cut(request)

    slow = {"model": "m", "stream": True, "x_delay_s": 1.0, "x_finish": 1}
    bounds = {"model_idle_ms": 300, "model_answer_ms": 20_000}
    async with (
        gateway_world(tmp_path, **bounds) as world,
        running(replica=FailsFirst()) as first,
        running() as second,
    ):
        world.gateway.models = Listed(served(first.port, second.port))
        for _ in range(2):
            async with world.session.post(world.url + CHAT, json=slow) as response:
                text = (await response.read()).decode()
            assert text.endswith("data: [DONE]\n\n"), text
        assert first.bodies and retries(world)
