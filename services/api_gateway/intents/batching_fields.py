"""The field `batching` of a model's deployment.

Pure. Tests: tests/unit/test_gateway_batching_fields.py.
"""

from typing import Final

from libs.common.batching import Batching
from libs.common.errors import Refused
from services.api_gateway.intents.fields import check_known, check_range, convert, names_of

ITEMS_MAX: Final = 4_096
WAIT_MS_MAX: Final = 10_000


def batching(given: object) -> Batching:
    """Return the bounds of a model's batches. Raises Refused."""
    if not isinstance(given, dict):
        raise Refused('batching: not an object: give for example {"items_max": 32, "wait_ms": 5}')
    check_known(given, names_of(Batching), "field of batching")
    if "items_max" not in given:
        raise Refused("batching.items_max: missing: give a whole number, 1 for no batches")
    found = convert(given, Batching)
    check_range("batching.items_max", found.items_max, 1, ITEMS_MAX)
    check_range("batching.wait_ms", found.wait_ms, 0, WAIT_MS_MAX)
    return found
