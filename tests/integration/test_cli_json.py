"""`-o json` of every verb is what REST answers: held against /openapi.json of a real gateway.

A verb that lists prints the rows of the route's list. The verbs are found in the command itself, so
a new verb with `-o json` and no row here fails.
"""

import json
from collections.abc import AsyncIterator, Mapping
from copy import deepcopy
from typing import Any, Final, NamedTuple

import click
import jsonschema_rs
import pytest
import pytest_asyncio

from libs.cli.main import muster
from tests.chaos.cluster import running
from tests.integration.test_cli_contract import (
    DEVICE,
    ENDED,
    HELD,
    MODEL,
    RUNS,
    WAITS,
    Command,
    leaves,
    prepared,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Shape(NamedTuple):
    """The JSON of a call: the answer of a route, or the rows of its list.

    `more` are members that the command adds, each with its own shape; None for a text of its own.
    """

    route: str
    rows: str = ""
    more: Mapping[str, "Shape | None"] = {}


JOB: Final = "GET /v1/jobs/{ref}"
JOBS: Final = Shape("GET /v1/jobs", "jobs")
NODES: Final = Shape("GET /v1/nodes", "nodes")
GPUS: Final = Shape("GET /v1/gpus", "gpus")
WITH_HISTORY: Final = {"history": Shape("GET /v1/jobs/{ref}/history", "facts")}

# Verb -> its calls, without `-o json`, and the shape of each.
CASES: Final[dict[str, tuple[tuple[str, Shape], ...]]] = {
    "adapter list": (("adapter list", Shape("GET /v1/adapters", "adapters")),),
    "alloc": (("alloc -g 1 --expires 1h -J json1", Shape("POST /v1/allocations")),),
    "describe": (
        (f"describe {RUNS}", Shape(JOB, more=WITH_HISTORY)),
        (f"describe {ENDED}", Shape(JOB, more=WITH_HISTORY)),
        (f"describe {HELD}", Shape(JOB, more=WITH_HISTORY)),
    ),
    "trace": ((f"trace {RUNS} --list", Shape("GET /v1/jobs/{ref}/traces", "traces")),),
    "fabric test": (("fabric test node-1 node-2", Shape("POST /v1/fabric/tests")),),
    "gpus": (("gpus", GPUS), ("gpus --node node-1", GPUS)),
    "health": (("health", GPUS), (f"health --gpu-id {DEVICE}", Shape("GET /v1/gpus/{uuid}"))),
    "jobs describe": ((f"jobs describe {RUNS}", Shape(JOB, more=WITH_HISTORY)),),
    "jobs list": (("jobs list", JOBS),),
    "key create": (("key create --user json", Shape("POST /v1/keys")),),
    "key list": (("key list", Shape("GET /v1/keys", "keys")),),
    "key rotate": (("key rotate {key_id}", Shape("POST /v1/keys/{key_id}/rotate")),),
    "leases": (("leases", Shape("GET /v1/leases")),),
    "locks": (("locks", Shape("GET /v1/locks", "locks")),),
    "log": (
        ("log -n 5", Shape("GET /v1/events", "events")),
        (f"log -j {RUNS}", Shape("GET /v1/events", "events")),
        ("log --access", Shape("GET /v1/access", "access")),
    ),
    "memory": (("memory", Shape("GET /v1/memory", "nodes")),),
    "model kept": (("model kept", Shape("GET /v1/kept", "kept")),),
    "model pulled": (("model pulled", Shape("GET /v1/pulled", "nodes")),),
    "models": (
        ("models", Shape("GET /v1/deployments", "deployments")),
        (f"models {MODEL}", Shape("GET /v1/deployments/{name}")),
    ),
    "notify list": (("notify list", Shape("GET /v1/notifications", "notifications")),),
    "nodes": (("nodes", NODES), ("nodes node-1", Shape("GET /v1/nodes/{node_id}"))),
    "prune": (("prune --older-than 1d --dry-run", Shape("POST /v1/prune")),),
    "ps": (("ps -a", JOBS), ("ps -s queued", JOBS)),
    "queue list": (("queue list", Shape("GET /v1/queues", "queues")),),
    "queue set": (("queue set json --policy fifo", Shape("PUT /v1/queues/{name}")),),
    "reservations": (("reservations", Shape("GET /v1/reservations", "reservations")),),
    "secret list": (("secret list", Shape("GET /v1/secrets", "secrets")),),
    "state": (("state", Shape("GET /v1/state")),),
    "status": (
        (
            "status",
            Shape(
                "",
                more={
                    "cluster": Shape("GET /v1/cluster"),
                    "nodes": NODES,
                    "gpus": GPUS,
                    "jobs": JOBS,
                },
            ),
        ),
    ),
    "diagnose": (
        (f"diagnose {RUNS}", Shape("POST /v1/jobs/{ref}/diagnoses")),
        (f"diagnose {RUNS} --last", Shape("GET /v1/jobs/{ref}/diagnoses")),
    ),
    "submit": (
        ("submit -g 0 --cpus 1 -- true", Shape("POST /v1/jobs")),
        ("submit --dry-run -g 0 --cpus 1 -- true", Shape("POST /v1/jobs")),
    ),
    "tenant list": (("tenant list", Shape("GET /v1/tenants", "tenants")),),
    "tenant set": (("tenant set json --gpus 2", Shape("PUT /v1/tenants/{name}")),),
    "tenant show": (("tenant show default", Shape("GET /v1/tenants/{name}")),),
    "topo": (("topo node-1", Shape("GET /v1/nodes/{node_id}/topology")),),
    "usage": (("usage --since 1h", Shape("GET /v1/usage", "usage")),),
    "history": (("history --since 1h", Shape("GET /v1/charges", "charges")),),
    "price list": (("price list", Shape("GET /v1/prices", "prices")),),
    "price set": (("price set t4 1 --currency EUR", Shape("PUT /v1/prices/{name}", "prices")),),
    "tenant idle": (("tenant idle default off", Shape("PUT /v1/tenants/{name}/idle")),),
    "whatif": (("whatif -g 1 -- true", Shape("POST /v1/whatif")),),
    "upload ls": (("upload ls", Shape("GET /v1/uploads", "uploads")),),
    "whoami": (("whoami", Shape("GET /v1/whoami", more={"gateway": None})),),
    "why": (
        (f"why {RUNS}", Shape("GET /v1/jobs/{ref}/why")),
        (f"why {WAITS}", Shape("GET /v1/jobs/{ref}/why")),
    ),
}
# Verbs whose JSON no route answers, and why.
OWN: Final = {
    "cluster verify": "no hash is recorded here: test_gateway_agreement.py has some",
    "config show": "the settings of this machine",
    "doctor": "checks of this machine",
    "simulate": "a simulation on this machine",
    "version": "the versions of the command, the gateway and the agents as one table",
}


def verbs_with_json() -> set[str]:
    context = click.Context(muster)
    return {verb for verb in leaves(muster, "", context) if _has_json(verb, context)}


def _has_json(verb: str, context: click.Context) -> bool:
    found: click.Command | None = muster
    for word in verb.split():
        assert isinstance(found, click.Group)
        found = found.get_command(context, word)
    assert found is not None
    return any(
        isinstance(option.type, click.Choice) and "json" in option.type.choices
        for option in found.params
    )


class Document:
    """The OpenAPI document, in which no object has members that it does not name."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.paths = document["paths"]
        self.components = deepcopy(document["components"])
        for schema in self.components["schemas"].values():
            if "properties" in schema:
                schema["additionalProperties"] = False

    def schema(self, shape: Shape) -> dict[str, Any]:
        """The schema of what a verb of this shape prints."""
        method, _, path = shape.route.partition(" ")
        answers = self.paths[path][method.lower()]["responses"]
        content = next(answers[code]["content"] for code in sorted(answers) if code < "300")
        schema: dict[str, Any] = content["application/json"]["schema"]
        if not shape.rows:
            return schema
        name = schema["$ref"].rpartition("/")[2]
        rows: dict[str, Any] = self.components["schemas"][name]["properties"][shape.rows]
        return rows

    def faults(self, value: Any, shape: Shape) -> list[str]:
        """Return the parts of the value that do not have this shape."""
        found: list[str] = []
        for name, own in shape.more.items():
            part = value.pop(name, None)
            if part is None:
                found.append(f"{name} is missing")
            elif own is not None:
                found += self.faults(part, own)
        if not shape.route:
            return [*found, *map(str, value)]
        whole = {**self.schema(shape), "components": self.components}
        errors = jsonschema_rs.validator_for(whole).iter_errors(value)
        return found + [f"{'/'.join(map(str, e.instance_path))}: {e.message}" for e in errors]


class Given(NamedTuple):
    command: Command
    document: Document


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def given(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Given]:
    folder = tmp_path_factory.mktemp("json")
    async with running(folder, nodes=2, gpus=6) as chaos:
        command = await prepared(folder, chaos)
        code, out = await command.run("key", "create", "--user", "other", "-o", "json")
        assert code == 0, out
        command.words["key_id"] = json.loads(out)["id"]
        yield Given(command, Document(await chaos.get("/openapi.json")))


async def test_every_verb_with_json_has_a_case() -> None:
    assert verbs_with_json() - CASES.keys() - OWN.keys() == set()
    assert {*CASES, *OWN} - verbs_with_json() == set()


@pytest.mark.parametrize("verb", sorted(CASES))
async def test_json_of_a_verb_is_what_the_gateway_describes(given: Given, verb: str) -> None:
    for line, shape in CASES[verb]:
        words, dashes, rest = line.partition(" -- ")
        argv = (*words.split(), "-o", "json", *((dashes + rest).split()))
        code, out = await given.command.run(*argv)
        assert code == 0, out
        assert given.document.faults(json.loads(out), shape) == [], line


async def test_a_shape_that_is_another_is_found_out(given: Given) -> None:
    document = given.document
    assert document.faults([{"id": "x", "colour": 1}], NODES)
    assert document.faults({"user": "a"}, Shape("GET /v1/whoami", more={"gateway": None}))
    assert document.faults({"cluster": 7, "x": 1}, Shape("", more={"cluster": NODES}))
