"""A whole cluster whose collector gets one job and one request as trees over all services."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.cluster import Chaos, running
from tests.integration.otlp_receiver import Received, Receiver, receiving, tree
from tests.integration.test_openai_cluster import CHAT, SERVER, ready

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


@pytest.fixture
async def cluster(tmp_path: Path, receiver: Receiver) -> AsyncIterator[Chaos]:
    told = {"MUSTER_OTLP_ENDPOINT": receiver.url, "MUSTER_SPAN_REQUEST_PERCENT": "100"}
    async with running(tmp_path, nodes=1, gpus=2, **told) as found:
        yield found


async def described(cluster: Chaos, job_id: str) -> str:
    """What `muster describe` prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from libs.cli.main import main; main()", "describe", job_id),
        env={**os.environ, "MUSTER_PROFILE": str(cluster.folder / "profile.json")},
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    return printed.decode()


async def job_tree(cluster: Chaos, receiver: Receiver) -> list[Received]:
    body = {"command": ["sh", "-c", 'echo "$TRACEPARENT"'], "gpus": 1}
    async with cluster.session.post("/v1/jobs", json=body) as answer:
        job = await answer.json()
        trace_id = answer.headers["x-trace-id"]
        assert answer.headers["x-request-id"].replace("-", "") == trace_id == job["trace_id"]
    found = await receiver.trace(trace_id, lambda spans: len(spans) >= 13)
    async with cluster.session.get(f"/v1/jobs/{job['id']}/output") as answer:
        told = await answer.text()
    assert trace_id in await described(cluster, job["id"])
    run = next(span for span in found if span.name == "muster.job.run")
    assert f"00-{trace_id}-{run.span_id}-01" in told
    return found


async def request_tree(cluster: Chaos, receiver: Receiver) -> list[Received]:
    command = [sys.executable, str(SERVER), "--port", "{port}", "--model", "m", "--token-ms", "2"]
    body = {"name": "m", "replicas": 1, "command": command}
    status, said = await cluster.try_once("POST", "/v1/deployments", json=body)
    assert status == 201, said
    await ready(cluster, lambda replicas: len(replicas) == 1)
    ask = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    ask["stream_options"] = {"include_usage": True}
    async with cluster.session.post(CHAT, json=ask) as answer:
        assert answer.status == 200
        await answer.read()
    trace_id = answer.headers["x-trace-id"]
    return await receiver.trace(trace_id, lambda spans: len(spans) >= 6)


async def question_tree(cluster: Chaos, receiver: Receiver) -> list[Received]:
    async with cluster.session.post("/v1/jobs", json={"command": ["true"], "gpus": 9}) as answer:
        job = await answer.json()
    async with cluster.session.get(f"/v1/jobs/{job['id']}/why") as answer:
        trace_id = answer.headers["x-trace-id"]
    return await receiver.trace(trace_id, lambda spans: len(spans) >= 2)


async def test_a_job_a_request_and_a_question_are_trees_over_all_services(
    cluster: Chaos, receiver: Receiver
) -> None:
    job = await job_tree(cluster, receiver)
    assert tree(job) == [
        "- > muster.request (muster-api-gateway)",
        "muster.job > muster.job.admit (muster-quota)",
        "muster.job > muster.job.archive (muster-audit)",
        "muster.job > muster.job.attempt (muster-scheduler)",
        "muster.job > muster.job.charge (muster-quota)",
        "muster.job.attempt > muster.job.order (muster-scheduler)",
        "muster.job.attempt > muster.job.place (muster-scheduler)",
        "muster.job.attempt > muster.job.queue (muster-scheduler)",
        "muster.job.attempt > muster.job.release (muster-node-agent)",
        "muster.job.attempt > muster.job.run (muster-node-agent)",
        "muster.job.attempt > muster.job.start (muster-node-agent)",
        "muster.request > muster.job (muster-scheduler)",
        "muster.request > muster.log.append (muster-api-gateway)",
    ]
    names = [span.name for span in job]
    order = ["admit", "queue", "place", "start", "run", "release"]
    places = [names.index(f"muster.job.{each}") for each in order]
    assert places == sorted(places)
    request = await request_tree(cluster, receiver)
    assert tree(request) == [
        "- > muster.request (muster-api-gateway)",
        "muster.request > muster.request.replica (muster-api-gateway)",
        "muster.request > muster.request.route (muster-api-gateway)",
        "muster.request > muster.request.wait (muster-api-gateway)",
        "muster.request.replica > muster.request.first_token (muster-api-gateway)",
        "muster.request.replica > muster.request.last_token (muster-api-gateway)",
    ]
    asked = next(span for span in request if span.name == "muster.request")
    assert asked.attributes["gen_ai.request.model"] == "m"
    assert asked.attributes["gen_ai.usage.output_tokens"] > 0
    assert "muster.request > muster.bus.answer (muster-scheduler)" in tree(
        await question_tree(cluster, receiver)
    )
