"""The problems of facts that a gateway does not record, because the log or a tenant's part of it is
full.

Pure. `Gateway.check_recordable` decides when they apply. Tests:
tests/unit/test_gateway_batch_intents.py.
"""

from typing import Final

from services.api_gateway.problems import Problem

RETRY_AFTER_S: Final = 60


def full(kind: str, fill: float, level: float) -> Problem:
    """Return Problem 507 for a kind of fact that is accepted up to this level only."""
    text = (
        f"{kind} was not recorded: the log is {fill:.0%} full, and {kind} is accepted up to "
        f"{level:.0%}: trim the log or raise MUSTER_STREAM_BYTES"
    )
    return Problem(507, text, retry_after_s=RETRY_AFTER_S)


def used_up(tenant: str, per_minute: int, wait_s: int) -> Problem:
    """Return Problem 429 for a tenant that has used up its bytes of this minute."""
    text = (
        f"tenant {tenant} has used up its {per_minute} bytes of log for this minute: try again in "
        f"{wait_s} s, send less, or raise MUSTER_TENANT_BYTES_PER_MINUTE"
    )
    return Problem(429, text, retry_after_s=wait_s)
