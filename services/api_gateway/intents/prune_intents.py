"""What a request to prune asks of every node.

Pure. Tests: tests/integration/test_gateway_prune.py.
"""

from collections.abc import Container, Iterable
from typing import Final

from libs.common.errors import Refused
from libs.common.messages import PruneAsk
from libs.common.transport.uploads import Upload
from services.api_gateway.intents.fields import check_known, check_range, convert, names_of
from services.api_gateway.times import instant_ns

RANGES: Final = (("older_than_s", 0, 1 << 33), ("keep_bytes", 0, 1 << 62))
# Its job may be about to be submitted.
YOUNG_S: Final = 3_600
FIELDS: Final = names_of(PruneAsk)


def old_uploads(
    uploads: Iterable[Upload], needed: Container[tuple[str, str]], ask: PruneAsk, now_ns: int
) -> list[Upload]:
    """By the same bounds, the oldest first: those that no job needs any more, and that nobody has
    sent within YOUNG_S.
    """
    oldest_first = sorted(
        uploads,
        key=lambda each: (instant_ns(each.sent_at, "sent_at", now_ns), each.tenant, each.sha256),
    )
    left, found = sum(each.size_bytes for each in oldest_first), []
    for each in oldest_first:
        age_s = (now_ns - instant_ns(each.sent_at, "sent_at", now_ns)) // 1_000_000_000
        old = ask.older_than_s is not None and age_s >= ask.older_than_s
        if (
            (each.tenant, each.sha256) in needed
            or age_s < YOUNG_S
            or not (old or (ask.keep_bytes is not None and left > ask.keep_bytes))
        ):
            continue
        found.append(each)
        left -= each.size_bytes
    return found


def asked(body: object) -> PruneAsk:
    """Raises Refused."""
    if not isinstance(body, dict):
        raise Refused("the request body must be a JSON object")
    check_known(body, FIELDS, "field")
    ask = convert(body, PruneAsk)
    if ask.older_than_s is None and ask.keep_bytes is None:
        raise Refused(
            "nothing to go by: give older_than_s, keep_bytes or both (keep_bytes 0 removes all)"
        )
    for name, low, high in RANGES:
        check_range(name, getattr(ask, name) or 0, low, high)
    return ask
