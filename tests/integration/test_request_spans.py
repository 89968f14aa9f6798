"""Traces of requests at a gateway: whose they continue, what is sampled, and what they show."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.common.spans import recording
from libs.common.spans.recording import Recorder, Span
from services.api_gateway.http import request_trace
from services.api_gateway.http.request_trace import TraceBudget
from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_world import CHAT, MESSAGES, Ledger, model_world

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
OPENMETRICS = {"accept": "application/openmetrics-text;version=1.0.0"}


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recording.active = Recorder()
    yield recording.active
    recording.active = None
    recording.current.set(None)


def named(spans: list[Span]) -> dict[str, Span]:
    return {span.name: span for span in spans}


async def test_a_stream_is_a_tree_with_its_tokens(tmp_path: Path, recorder: Recorder) -> None:
    async with model_world(tmp_path) as (world, replica):
        world.gateway.meter = Ledger(100_000)
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine-1"}
        body = {"model": "m", "messages": MESSAGES, "stream": True, "x_chunks": 3}
        async with world.session.post(world.url + CHAT, json=body, headers=headers) as response:
            await response.read()
            assert response.headers["x-trace-id"] == TRACE
            assert response.headers["x-request-id"] == "mine-1"
        text = await _metrics(world)
    found = named(recorder.take(99))
    request, sent = found["muster.request"], found["muster.request.replica"]
    assert set(found) == {
        "muster.request",
        *(f"muster.request.{step}" for step in ("limits", "route", "wait", "replica")),
        *(f"muster.request.{step}" for step in ("first_token", "last_token")),
    }
    assert {span.trace_id for span in found.values()} == {TRACE}
    assert (request.parent_id, sent.parent_id) == (PARENT, request.span_id)
    assert replica.headers[0]["traceparent"] == f"00-{TRACE}-{sent.span_id}-01"
    assert found["muster.request.first_token"].end_ns == found["muster.request.last_token"].start_ns
    assert request.attributes["gen_ai.operation.name"] == "chat"
    assert sent.attributes["muster.replica.job_id"] == "m-0"
    bucket = f'# {{trace_id="{TRACE}"}}'
    assert any(
        "muster_model_first_token_seconds_bucket" in line and bucket in line for line in text
    )
    assert any("muster_gateway_request_seconds_bucket" in line and bucket in line for line in text)
    assert text[-1] == "# EOF" and text.count("# EOF") == 1


async def _metrics(world: World) -> list[str]:
    async with world.session.get(world.url + "/metrics", headers=OPENMETRICS) as response:
        assert response.content_type == "application/openmetrics-text"
        return (await response.text()).splitlines()


async def test_a_failed_replica_is_a_failed_span(tmp_path: Path, recorder: Recorder) -> None:
    async with model_world(tmp_path) as (world, _):
        body = {"model": "m", "messages": MESSAGES, "x_status": 503}
        async with world.session.post(world.url + CHAT, json=body) as response:
            assert response.status == 503
    found = named(recorder.take(99))
    assert found["muster.request.replica"].error == "the replica answered 503"
    assert found["muster.request"].error == "status 503"


async def test_a_submitted_job_keeps_the_trace_of_its_request(
    tmp_path: Path, recorder: Recorder
) -> None:
    async with gateway_world(tmp_path) as world:
        async with world.session.post(
            world.url + "/v1/jobs", json={"command": ["true"], "gpus": 1}
        ) as response:
            job = await response.json()
            trace_id = response.headers["x-request-id"].replace("-", "")
        request = named(recorder.take(99))["muster.request"]
        assert trace_id == job["trace_id"] == request.trace_id
        kept = world.gateway.cluster.jobs[job["id"]].trace
        assert kept == f"00-{trace_id}-{request.span_id}-01"


async def test_what_is_not_sampled_is_not_recorded(tmp_path: Path, recorder: Recorder) -> None:
    recorder.job_percent = recorder.request_percent = 0
    async with gateway_world(tmp_path) as world:
        for headers in ({}, {"traceparent": f"00-{TRACE}-{PARENT}-00"}):
            async with world.session.post(
                world.url + "/v1/jobs", json={"command": ["true"], "gpus": 1}, headers=headers
            ) as response:
                assert "x-trace-id" not in response.headers
                assert (await response.json())["trace_id"] == ""
        async with world.session.get(
            world.url + "/v1/jobs", headers={"authorization": "Bearer wrong"} | _sampled()
        ) as response:
            assert response.status == 401
    assert recorder.take(99) == []


def _sampled() -> dict[str, str]:
    return {"traceparent": f"00-{TRACE}-{PARENT}-01"}


async def test_nothing_is_traced_while_spans_are_off(tmp_path: Path) -> None:
    async with model_world(tmp_path) as (world, replica):
        body = {"model": "m", "messages": MESSAGES}
        async with world.session.post(world.url + CHAT, json=body, headers=_sampled()) as response:
            assert response.status == 200 and "x-trace-id" not in response.headers
        assert replica.headers[0]["traceparent"] == _sampled()["traceparent"]


def test_a_tenant_begins_a_bounded_number_of_traces_in_a_second() -> None:
    budget, most = TraceBudget(), request_trace.TENANT_TRACES_MAX
    assert sum(budget.take("noisy", 5) for _ in range(10 * most)) == most
    assert budget.take("quiet", 5) and budget.take("noisy", 6)
