"""The newest charges of a time, for the history of jobs.

Pure. Tests: tests/unit/test_charges.py.
"""

from collections import deque
from typing import Final

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.messages.usage_messages import ChargeRow, ChargesAnswer, ChargesAsk

# Rows in one answer.
ROWS_MAX: Final = 1_000


class Newest:
    """The newest charges that are asked for; facts are added in the order of the log."""

    def __init__(self, ask: ChargesAsk) -> None:
        self.tenant, self.user = ask.tenant, ask.user
        self.rows: deque[ChargeRow] = deque(maxlen=max(1, min(ask.limit, ROWS_MAX)))
        self.count = 0

    def add(self, fact: AnyFact | f.Unknown, at_ns: int) -> None:
        """Add a fact that was recorded at this time; other kinds add nothing."""
        if (
            isinstance(fact, f.UsageCharged)
            and self.tenant in ("", fact.tenant)
            and self.user in ("", fact.user)
        ):
            self.count += 1
            self.rows.append(ChargeRow(at_ns, replace(fact, lines=())))

    def answer(self, seq: int) -> ChargesAnswer:
        return ChargesAnswer(list(reversed(self.rows)), self.count - len(self.rows), seq)
