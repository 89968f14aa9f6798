"""The field `batching` of a deployment: read, and refused with the name of the wrong part."""

import pytest

from libs.common.batching import Batching
from libs.common.errors import Refused
from libs.common.model import TenantId
from services.api_gateway.intents.batching_fields import batching
from services.api_gateway.intents.model_intents import deployment

BODY = {"name": "m", "command": ["serve", "{port}"]}


def test_a_deployment_has_the_bounds_of_its_batches() -> None:
    body = {**BODY, "batching": {"items_max": 32}}
    assert deployment(body, None, TenantId("t")).spec.batching == Batching(items_max=32, wait_ms=5)
    assert deployment({**BODY, "batching": None}, None, TenantId("t")).spec.batching is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (32, "batching: not an object"),
        ({}, "batching.items_max: missing"),
        ({"items_max": 0}, "batching.items_max"),
        ({"items_max": 5_000}, "batching.items_max"),
        ({"items_max": "8"}, "items_max"),
        ({"items_max": 8, "wait_ms": -1}, "batching.wait_ms"),
        ({"items_max": 8, "wait": 5}, "did you mean 'wait_ms'"),
    ],
)
def test_wrong_bounds_are_refused(given: object, words: str) -> None:
    with pytest.raises(Refused, match=words):
        batching(given)
