"""schemathesis over the OpenAPI document, against a real gateway: valid and invalid requests made from it never meet a bug (5xx), and every
answer is one that the document says.

The examples are the same in every run; MUSTER_TEST_EXAMPLES asks for more of them. Streams that never end are left out, and a scheduler's
answers come from its own functions over the gateway's state.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from libs.common import subjects
from libs.common.cluster import Cluster
from libs.common.inventory import Stocks
from libs.common.transport import snapshot
from libs.common.transport.bus import Bus
from services.api_gateway.openai.request import ENDPOINTS
from services.node_agent.drivers.simulated import SimulatedDriver
from services.node_agent.job_files import FileAnswers
from services.scheduler.explain import explain
from services.scheduler.explain_model import WhyAsk, explain_model
from services.scheduler.state import State
from services.scheduler.what_if import WhatIfAsk, what_if
from tests.integration.gateway_world import KEY, FakeNode, World, gateway_world

EXAMPLES: Final = int(os.environ.get("MUSTER_TEST_EXAMPLES", "12"))
# These do not end by themselves.
STREAMS: Final = ("/v1/watch", "/v1/jobs/{ref}/attach")
# Audit answers them, which does not run here: tests/integration/test_gateway_audit.py.
OF_AUDIT: Final = ("/v1/audit/events", "/v1/audit/head")
DOCUMENTED: Final = [status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path, settle_ms=1, wait_max_ms=20) as found:
        await found.writers.begin_term()
        await found.writers.register("n1")
        node = FakeNode()
        await node.listen(found.bus, "n1")
        files = FileAnswers("n1", found.bus, lambda _: (str(tmp_path), False, []))
        await files.listen()
        await listen(found.bus, lambda: found.gateway.cluster)
        running = await found.run_to("running", stdin=True)
        node.say(running, "stdout", b"hello", end=True)
        yield found
        files.close()


async def listen(bus: Bus, cluster: Any) -> None:
    """What a scheduler answers, of a copy of this state, and a node."""

    async def why(subject: str, data: bytes) -> bytes:
        ask, state = msgspec.msgpack.decode(data, type=WhyAsk), State(snapshot.copy(cluster()))
        return msgspec.json.encode(explain_model(state, ask.model) if ask.model else explain(state, ask.job_id))

    async def whatif(subject: str, data: bytes) -> bytes:
        found = what_if(State(snapshot.copy(cluster())), msgspec.msgpack.decode(data, type=WhatIfAsk))
        return msgspec.json.encode(found | {"decision_latency_us": 1.0})

    async def inventory(subject: str, data: bytes) -> bytes:
        return Stocks().answer(cluster(), data.decode())

    async def topology(subject: str, data: bytes) -> bytes:
        return msgspec.msgpack.encode(await SimulatedDriver("n", 2).topology())

    await bus.subscribe(subjects.ask_node("*", "topology"), topology)
    await bus.subscribe(subjects.ask_scheduler("inventory"), inventory)
    await bus.subscribe(subjects.ask_scheduler("why"), why)
    await bus.subscribe(subjects.ask_scheduler("whatif"), whatif)


def prepared(document: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """The document with names that are there in its paths, and without what makes an answer endless."""
    known = {"ref": [*cluster.jobs], "node_id": [*cluster.nodes], "key_id": [*cluster.keys], "name": ["chat", "physics", "default"]}
    found = deepcopy(document)
    for path in (*STREAMS, *OF_AUDIT):
        del found["paths"][path]
    for operations in found["paths"].values():
        for operation in operations.values():
            parameters = [each for each in operation.get("parameters", ()) if each["name"] not in ("follow", "min_seq")]
            for each in parameters:
                if each["in"] == "path" and each["name"] in known:
                    each["schema"] = {"type": "string", "enum": [*known[each["name"]], "no-such"]}
            operation["parameters"] = parameters
    return found


def run(document: dict[str, Any], url: str) -> list[str]:
    """Every operation with its examples; what each was found to do wrong."""
    faults = []
    schema = schemathesis.openapi.from_dict(document)
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in _modes(document["paths"][operation.path][operation.method]):
            try:
                _exercise(operation, mode, url)
            except FailureGroup as group:
                faults.append(f"{operation.label} ({mode.value}): {group.exceptions[0]}")
    return faults


def _modes(operation: dict[str, Any]) -> list[GenerationMode]:
    """Where nothing is asked, nothing can be asked wrongly."""
    asks = operation.get("parameters") or "requestBody" in operation
    return [GenerationMode.POSITIVE, GenerationMode.NEGATIVE] if asks else [GenerationMode.POSITIVE]


def _exercise(operation: Any, mode: Any, url: str) -> None:
    """A model that an earlier example has deployed has no replica: of models 503 is as the document says, and 500 never is."""
    checks = DOCUMENTED if operation.path in ENDPOINTS else [not_a_server_error, *DOCUMENTED]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),
    )  # fmt: skip
    def exercise(case: Any) -> None:
        headers = {"authorization": f"Bearer {KEY}"}
        case.call_and_validate(base_url=url, headers=headers, timeout=20, checks=checks)

    exercise()


async def test_no_request_made_from_the_document_meets_a_bug_and_every_answer_is_as_it_says(world: World) -> None:
    await world.ask("PUT", "/v1/tenants/physics", 201)
    await world.ask("POST", "/v1/keys", 201, json={"user": "ada"})
    await world.ask("POST", "/v1/deployments", 201, json={"name": "chat", "command": ["serve", "{port}"]})
    document = await world.ask("GET", "/openapi.json")
    faults = await asyncio.to_thread(run, prepared(document, world.gateway.cluster), world.url)
    assert faults == []


async def test_a_document_that_says_something_else_is_found_out(world: World) -> None:
    document = prepared(await world.ask("GET", "/openapi.json"), world.gateway.cluster)
    document["paths"] = {path: document["paths"][path] for path in ("/v1/version", "/v1/whoami", "/v1/jobs/{ref}")}
    del document["paths"]["/v1/jobs/{ref}"]["get"]["responses"]["404"]
    document["components"]["schemas"]["Version"]["required"].append("colour")
    faults = await asyncio.to_thread(run, document, world.url)
    assert {fault.split(" (")[0] for fault in faults} == {"GET /v1/version", "GET /v1/jobs/{ref}"}
