"""All checks of schemathesis over every operation of the OpenAPI document, against a real cluster:
with an administrator's key, a member's key, and none.

`make test` makes a few requests to each operation. `make attack` asks for the whole:
MUSTER_TEST_SECONDS is how long each key's run may take, with schemathesis' coverage of every bound
and its sequences of operations.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.chaos.cluster import Chaos, running
from tests.integration.conformance import Fault, bound_streams, faults

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECONDS: Final = int(os.environ.get("MUSTER_TEST_SECONDS", "0"))
EXAMPLES: Final = 2
# A JSON Schema describes each field alone. 422 says that fields contradict each other (two names of
# one thing, a GPU's share beside a MIG profile) or name what is not there; 410, 425, 426 and 507
# speak of the job's or the log's state. A request that fits the document may therefore meet them.
# 400, 405, 406, 413 and 415 it may not.
OF_STATE: Final = ("410", "422", "425", "426", "507")
ACCEPTED: Final = ("2xx", "3xx", "401", "403", "404", "409", "429", "503", *OF_STATE)
# 503 is an answer of these routes that the document gives: no head is signed in this cluster or
# none yet, no replica serves the model, the cluster's other parts are asked and may be busy. 500,
# 502 and 504 are faults everywhere.
ANSWERS: Final = ("2xx", "3xx", "4xx", "503")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    async with running(
        tmp_path_factory.mktemp("openapi"), nodes=2, gpus=2, MUSTER_WAIT_MAX_MS="300"
    ) as made:
        yield made


async def ask(cluster: Chaos, method: str, path: str, body: Any) -> dict[str, Any]:
    status, answer = await cluster.try_once(method, path, json=body)
    assert status in (200, 201), answer
    found: dict[str, Any] = answer
    return found


async def described(cluster: Chaos) -> dict[str, Any]:
    """Return the document with existing names in its paths, and with commands that do nothing,
    because they run on this machine.
    """
    job = await ask(
        cluster,
        "POST",
        "/v1/jobs",
        {"command": ["sleep", "1000"], "stdin": True, "gpus": 0, "cpus": 1},
    )
    (node, *_), (gpu, *_) = (
        (await cluster.get("/v1/nodes"))["nodes"],
        (await cluster.get("/v1/gpus"))["gpus"],
    )
    known = {"ref": job["id"], "node_id": node["id"], "uuid": gpu["uuid"], "name": "default"}
    document: dict[str, Any] = deepcopy(await cluster.get("/openapi.json"))
    for operations in document["paths"].values():
        for operation in operations.values():
            for each in operation.get("parameters", ()):
                if each["in"] == "path" and each["name"] in known:
                    each["schema"] = {
                        "anyOf": [
                            {"type": "string", "enum": [known[each["name"]]]},
                            {"type": "string", "minLength": 1},
                        ]
                    }
            content = (
                operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            )
            if "command" in (fields := content.get("schema", {}).get("properties", {})):
                fields["command"] = {
                    "type": "array",
                    "items": {"type": "string", "enum": ["true"]},
                    "minItems": 1,
                }
    return document


def run(document: dict[str, Any], url: str, key: str, seconds: int = 0) -> list[Fault]:
    """All faults that are found in so many seconds; 0 for one short pass over the operations."""
    phases = ("examples", "coverage", "fuzzing", "stateful") if seconds else ("examples", "fuzzing")
    told = {
        "seed": 1,
        "workers": 1,
        "generation": {"max-examples": EXAMPLES, "no-shrink": True, "database": "none"},
        "phases": {
            name: {"enabled": name in phases}
            for name in ("examples", "coverage", "fuzzing", "stateful")
        },
        "checks": {
            "positive_data_acceptance": {"expected-statuses": ACCEPTED},
            "not_a_server_error": {"expected-statuses": ANSWERS},
        },
        **({"max-time": seconds} if seconds else {}),
    }
    return list(faults(document, url, {"Authorization": f"Bearer {key}"} if key else {}, told))


@pytest.mark.attack
@pytest.mark.parametrize(
    "role", ["admin", *(pytest.param(role, marks=pytest.mark.drill) for role in ("member", ""))]
)
async def test_every_check_is_clean_with_the_key_of(
    cluster: Chaos, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = await described(cluster)
    made = (
        await ask(cluster, "POST", "/v1/keys", {"user": "ada", "role": role})
        if role
        else {"key": ""}
    )
    bound_streams(monkeypatch)
    found = await asyncio.to_thread(run, document, cluster.urls[0], made["key"], SECONDS)
    assert not found, "\n".join(
        f"{fault.check}: {fault.operation}: {fault.text}: {fault.request} {fault.status}"
        for fault in found
    )


async def test_a_document_that_says_something_else_is_found_out(cluster: Chaos) -> None:
    """Each fault planted in the document is found by the check that is there for it."""
    document = await described(cluster)
    paths = document["paths"] = {
        path: document["paths"][path] for path in ("/v1/version", "/livez", "/v1/jobs/{ref}")
    }
    paths["/v1/jobs/{ref}"] = {"get": paths["/v1/jobs/{ref}"]["get"]}
    del paths["/v1/jobs/{ref}"]["get"]["responses"]["404"]
    document["components"]["schemas"]["Version"]["required"].append("colour")
    paths["/livez"]["get"]["security"] = [{"key": []}]
    made = await ask(cluster, "POST", "/v1/keys", {"user": "eve", "role": "admin"})
    found = {
        (fault.check, fault.operation)
        for fault in await asyncio.to_thread(run, document, cluster.urls[0], made["key"])
    }
    assert ("response_schema_conformance", "GET /v1/version") in found
    assert ("status_code_conformance", "GET /v1/jobs/{ref}") in found
    assert ("ignored_auth", "GET /livez") in found
