"""Bounds the second tries of a model's requests.

A second try costs a replica work that another one may do too. So second tries are a small part of
the requests, and an outage or an overload does not multiply the load. Pure. Tests:
tests/unit/test_serving_retry_budget.py.
"""

from typing import Final

SECOND_NS: Final = 1_000_000_000
# A try, in the unit of the counter: each request adds its percents.
TRY: Final = 100
# Tries that may be saved up: a model with few requests can retry too.
SAVED_MAX: Final = 10
# One more try is allowed each time that so much time has passed.
FREE_EVERY_NS: Final = 10 * SECOND_NS


class RetryBudget:
    """The budget of one model: `percent` of its requests, 0 for none at all."""

    def __init__(self, percent: int) -> None:
        self.percent = percent
        self._saved = SAVED_MAX * TRY
        self._counted_ns = 0

    def request(self) -> None:
        """Count a request, which adds to the budget."""
        self._saved = min(SAVED_MAX * TRY, self._saved + self.percent)

    def take(self, now_ns: int) -> bool:
        """Take one second try out of the budget; return False if none is left."""
        if not self.percent:
            return False
        free = (now_ns - self._counted_ns) * TRY // FREE_EVERY_NS
        self._saved = min(SAVED_MAX * TRY, self._saved + free)
        self._counted_ns += free * FREE_EVERY_NS // TRY
        if self._saved < TRY:
            return False
        self._saved -= TRY
        return True
