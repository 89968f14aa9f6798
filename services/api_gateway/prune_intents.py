"""What a request to prune asks of every node. Pure. Tests: tests/integration/test_gateway_prune.py."""

from typing import Final

from libs.common.errors import Refused
from libs.common.messages import PruneAsk
from services.api_gateway.fields import check_known, check_range, convert, names_of

RANGES: Final = (("older_than_s", 0, 1 << 33), ("keep_bytes", 0, 1 << 62))
FIELDS: Final = names_of(PruneAsk)


def asked(body: object) -> PruneAsk:
    """Raises Refused."""
    if not isinstance(body, dict):
        raise Refused("the request body must be a JSON object")
    check_known(body, FIELDS, "field")
    ask = convert(body, PruneAsk)
    if ask.older_than_s is None and ask.keep_bytes is None:
        raise Refused("nothing to go by: give older_than_s, keep_bytes or both (keep_bytes 0 removes all)")
    for name, low, high in RANGES:
        check_range(name, getattr(ask, name) or 0, low, high)
    return ask
