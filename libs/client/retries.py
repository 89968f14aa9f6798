"""Decide when a request is repeated, and after which pause.

Pure: the clock and the random number are arguments. A request that may have been carried out is
repeated only if it is repeatable. Tests: tests/unit/test_client_retries.py.
"""

from typing import Final

from libs.client.calls import Call
from libs.client.errors import ApiError, RateLimited, Unavailable, asked_pause_s

PAUSE_FIRST_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
# Conditions that last: the log or the bucket of uploads is nearly full.
LASTING: Final = (507,)


class Retries:
    """The tries of one call, which end after `within_s`."""

    def __init__(self, call: Call, within_s: float, now_s: float) -> None:
        self.call = call
        self.until_s = now_s + within_s
        self.next_s = PAUSE_FIRST_S

    def pause_s(self, error: ApiError, now_s: float, random: float) -> float | None:
        """Return the pause before the next try, or None if the error must be raised.

        `random` is between 0 and 1; it spreads the tries of many clients.
        """
        if not self._may_repeat(error):
            return None
        pause_s = max(asked_pause_s(error), self.next_s * (0.5 + random / 2))
        self.next_s = min(PAUSE_MAX_S, 2 * self.next_s)
        return pause_s if now_s + pause_s <= self.until_s else None

    def _may_repeat(self, error: ApiError) -> bool:
        if isinstance(error, RateLimited):
            return True
        if not isinstance(error, Unavailable) or error.status in LASTING:
            return False
        return self.call.repeatable or not error.sent
