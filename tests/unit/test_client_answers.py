"""The classes of answers are what the gateway's description gives, and older and newer gateways are
understood.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.client import calls
from libs.client.models import (
    allocations,
    cluster,
    deployments,
    jobs,
    locks,
    log,
    nodes,
    specs,
    tenants,
)
from services.api_gateway.http import client_models
from tests.tidy import ROOT

MODULES = (allocations, cluster, deployments, jobs, locks, log, nodes, specs, tenants)
KINDS = [
    kind
    for module in MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and kind.__module__ == module.__name__
]
# Names that no gateway has now.
NEW_FIELDS = ("new_a", "new_b", "new_cost", "new_state")


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return client_models.sources(client_models.description())


def test_the_files_are_what_the_description_gives_now(sources: dict[str, str]) -> None:
    folder: Path = ROOT / client_models.FOLDER
    kept = {path.name: path.read_text() for path in folder.glob("*.py")}
    assert kept == sources, "`make docs` writes them"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_has_a_default_so_that_an_older_gateway_is_understood(kind: type) -> None:
    assert calls.decoded(b"{}", kind, "GET /x") == kind()


@given(
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(NEW_FIELDS), st.integers(), max_size=4),
)
def test_fields_of_a_newer_gateway_are_ignored(kind: type, more: dict[str, Any]) -> None:
    assert calls.decoded(msgspec.json.encode(more), kind, "GET /x") == kind()


# What gateways of past versions answered, by route: added to, never edited.
RECORDED = sorted((ROOT / "tests" / "golden" / "gateway_answers").glob("*.json"))
READ_AS: dict[str, type] = {
    "GET /v1/jobs/{ref}": jobs.JobShown,
    "GET /v1/jobs/{ref}/wait": jobs.JobShown,
    "GET /v1/jobs/{ref}/why": jobs.Why,
    "POST /v1/whatif": jobs.WhatIf,
    "GET /v1/events": log.EventList,
    "GET /v1/allocations/{ref}": allocations.AllocationShown,
    "POST /v1/deployments": deployments.ModelShown,
    "GET /v1/nodes/{node_id}": nodes.NodeFull,
    "GET /v1/whoami": cluster.Principal,
    "GET /v1/cluster": cluster.ClusterShown,
    "GET /v1/version": cluster.Version,
}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_answers_of_past_gateways_lose_no_field_that_is_known(path: Path) -> None:
    """A field that is renamed, removed or of another type would break older or newer clients."""
    recorded = msgspec.json.decode(path.read_bytes())
    holds = recorded.pop("GET /v1/allocations")["allocations"]
    found = {route: msgspec.convert(each, READ_AS[route]) for route, each in recorded.items()}
    assert set(found) == set(READ_AS)
    for route, read in found.items():
        assert _without(recorded[route], msgspec.to_builtins(read)) == {}, route
    rows = msgspec.convert(holds, list[allocations.HoldShown])
    assert all(
        _without(hold, msgspec.to_builtins(row)) == {}
        for hold, row in zip(holds, rows, strict=True)
    )


def _without(recorded: Any, read: Any) -> Any:
    """The members of the recorded answer that the client did not read as they were."""
    if isinstance(recorded, dict) and isinstance(read, dict):
        found = {name: _without(each, read.get(name, ...)) for name, each in recorded.items()}
        return {name: each for name, each in found.items() if each != {}}
    if isinstance(recorded, list) and isinstance(read, list) and len(recorded) == len(read):
        pairs = [_without(one, other) for one, other in zip(recorded, read, strict=True)]
        return {} if all(each == {} for each in pairs) else pairs
    return {} if recorded == read else recorded


def test_the_generator_knows_every_form_of_a_field() -> None:
    fields: dict[str, Any] = {
        "text": {"type": "string"},
        "count": {"type": "integer", "default": 3},
        "word": {"enum": ["a", "b"], "default": "a"},
        "odd": {"enum": [1, "b"]},
        "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        "rows": {"type": "array", "items": {"$ref": "#/components/schemas/Part"}},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}]},
        "names": {"type": "object", "additionalProperties": {"type": "boolean"}},
        "open": {"type": "object"},
        "part": {"$ref": "#/components/schemas/Part"},
        "anything": {},
    }
    assert client_models._class("Thing", {"properties": fields}).splitlines() == [
        "class Thing(Shown):",
        '    text: str = ""',
        "    count: int = 3",
        '    word: str = "a"',
        "    odd: Any = None",
        "    maybe: float | None = None",
        "    rows: list[Part] = []",
        "    pair: list[Any] = []",
        "    names: dict[str, bool] = {}",
        "    open: dict[str, Any] = {}",
        "    part: Part = msgspec.field(default_factory=Part)",
        "    anything: Any = None",
    ]
