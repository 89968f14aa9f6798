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
from libs.client.models import allocations, cluster, deployments, jobs, log, nodes, specs, tenants
from services.api_gateway.http import client_models
from tests.tidy import ROOT

MODULES = (allocations, cluster, deployments, jobs, log, nodes, specs, tenants)
KINDS = [
    kind
    for module in MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and kind.__module__ == module.__name__
]


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
    st.dictionaries(st.from_regex(r"new_[a-z]{1,9}", fullmatch=True), st.integers(), max_size=4),
)
def test_fields_of_a_newer_gateway_are_ignored(kind: type, more: dict[str, Any]) -> None:
    assert calls.decoded(msgspec.json.encode(more), kind, "GET /x") == kind()


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
