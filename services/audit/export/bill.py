"""Adds up what was used and charged: one line for each key and model, and for each user's jobs.

Pure. The shares of a payer's lines add up to what UsageCharged charged it, because each charge is
split into its lines and an idle line. Tests: tests/unit/test_audit_bill.py.
"""

from typing import Final

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.messages.usage_messages import (
    IDLE,
    JOB,
    REQUESTS,
    Name,
    UsageAnswer,
    UsageLine,
    merged,
)

# The kinds of facts that are read.
KINDS: Final = ("model.used", "usage.charged")
# With more lines, those of users are added up without their keys, then without their users.
LINES_MAX: Final = 3_000


class Bill:
    """The bill of one time: of all tenants, or of what one tenant pays or uses."""

    def __init__(self, tenant: str = "") -> None:
        self.tenant = tenant
        self.lines: dict[Name, UsageLine] = {}
        self.charged: dict[str, int] = {}

    def add(self, fact: AnyFact | f.Unknown) -> None:
        """Add a fact; other kinds add nothing."""
        if isinstance(fact, f.ModelUsed):
            for use in fact.uses:
                self._add_use(use)
        elif isinstance(fact, f.UsageCharged):
            self._add_charge(fact)

    def _add_use(self, use: f.ModelUse) -> None:
        line = self._line(use.owner, use.tenant, use.user, use.key_id, use.model, REQUESTS)
        line.requests += use.requests
        line.input_tokens += use.input_tokens
        line.output_tokens += use.output_tokens

    def _add_charge(self, fact: f.UsageCharged) -> None:
        payer = fact.tenant
        self.charged[payer] = self.charged.get(payer, 0) + fact.share_ms
        # Ids of users' jobs contain no hyphen; a replica's is its model's name and a number.
        model, _, _ = fact.job_id.rpartition("-")
        if not model:
            self._line(payer, payer, fact.user, "", "", JOB).share_ms += fact.share_ms
            return
        for part in fact.lines:
            line = self._line(payer, part.tenant, part.user, part.key_id, model, REQUESTS)
            line.share_ms += part.share_ms
        idle = fact.share_ms - sum(part.share_ms for part in fact.lines)
        self._line(payer, payer, "", "", model, IDLE).share_ms += idle

    def _line(
        self, payer: str, tenant: str, user: str, key: str, model: str, kind: str
    ) -> UsageLine:
        name = (payer, tenant, user, key, model, kind)
        found = self.lines.get(name)
        if found is None:
            found = self.lines[name] = UsageLine(*name)
        return found

    def answer(self, seq: int) -> UsageAnswer:
        """Return the lines in order. If they are too many for an answer, some are merged."""
        lines = [
            line
            for line in self.lines.values()
            if not self.tenant or self.tenant in (line.payer, line.tenant)
        ]
        for blank in (_without_key, _without_user):
            if len(lines) > LINES_MAX:
                lines = merged(lines, blank)
        return UsageAnswer(sorted(lines, key=_name), self.charged, seq)


def _name(line: UsageLine) -> Name:
    return line.payer, line.tenant, line.user, line.key, line.model, line.kind


def _without_key(line: UsageLine) -> Name:
    return line.payer, line.tenant, line.user, "", line.model, line.kind


def _without_user(line: UsageLine) -> Name:
    return line.payer, line.tenant, "", "", line.model, line.kind
