"""Adds up what was used and charged: one line for each key and model, and for each user's jobs.

Pure. The shares and costs of a payer's lines add up to what UsageCharged charged it, because each
charge is split into its cells (`charge_cells.py`). Tests: tests/unit/test_audit_bill.py.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.messages.usage_messages import (
    GPU,
    JOB,
    PERIODS,
    REQUESTS,
    Name,
    UsageAnswer,
    UsageLine,
    merged,
    name_of,
    new_line,
)
from services.audit.export.charge_cells import Cell, cells_of

# The kinds of facts that are read.
KINDS: Final = ("model.used", "usage.charged")
# With more lines, they are added up without their jobs, then without their keys, then without their
# users.
LINES_MAX: Final = 2_000
# How a period is written.
WRITTEN: Final = {"hour": "%Y-%m-%dT%H:00Z", "day": "%Y-%m-%d", "month": "%Y-%m"}
DAY_LETTERS, MONTH_LETTERS = len("2026-11-27"), len("2026-11")


class Bill:
    """The bill of one time: of all tenants, or of what one tenant pays or uses.

    `further` names what else tells lines apart (`usage_messages.FURTHER`). `user`: only the lines
    of this user, of the tenant if there is one. Such a bill says not what payers were charged.
    """

    def __init__(self, tenant: str = "", further: Sequence[str] = (), user: str = "") -> None:
        self.tenant, self.user = tenant, user
        self.by_gpu, self.by_job = GPU in further, JOB in further
        self.period = next((part for part in further if part in PERIODS), "")
        self.lines: dict[Name, UsageLine] = {}
        self.charged: dict[str, int] = {}
        self.costs: dict[str, dict[str, int]] = {}

    def add(self, fact: AnyFact | f.Unknown, at_ns: int = 0) -> None:
        """Add a fact that was recorded at this time; other kinds add nothing."""
        if isinstance(fact, f.ModelUsed):
            for use in fact.uses:
                self._add_use(use, period_of(self.period, at_ns))
        elif isinstance(fact, f.UsageCharged):
            self._add_charge(fact, period_of(self.period, at_ns))

    def _add_use(self, use: f.ModelUse, period: str) -> None:
        line = self._line(
            Name(
                payer=use.owner,
                tenant=use.tenant,
                user=use.user,
                key=use.key_id,
                model=use.model,
                kind=REQUESTS,
                job=use.job_id if self.by_job else "",
                period=period,
            )
        )
        line.requests += use.requests
        line.input_tokens += use.input_tokens
        line.output_tokens += use.output_tokens

    def _add_charge(self, fact: f.UsageCharged, period: str) -> None:
        self.charged[fact.tenant] = self.charged.get(fact.tenant, 0) + fact.share_ms
        for part in fact.parts:
            if part.currency:
                costs = self.costs.setdefault(fact.tenant, {})
                costs[part.currency] = costs.get(part.currency, 0) + part.cost_micros
        job = fact.job_id if self.by_job else ""
        names: set[Name] = set()
        for cell in cells_of(fact):
            name = self._name(fact.tenant, cell, job, period)
            line = self._line(name)
            names.add(name)
            line.share_ms += cell.share_ms
            line.cost_micros += cell.cost_micros
            line.busy_share_ms += cell.busy_share_ms
            line.idle_share_ms += cell.idle_share_ms
            line.energy_mj += cell.energy_mj
        for name in names:
            self.lines[name].charges += 1

    def _name(self, payer: str, cell: Cell, job: str, period: str) -> Name:
        return Name(
            payer=payer,
            tenant=cell.tenant,
            user=cell.user,
            key=cell.key,
            model=cell.model,
            kind=cell.kind,
            gpu=cell.gpu if self.by_gpu else "",
            job=job,
            period=period,
            currency=cell.currency,
        )

    def _line(self, name: Name) -> UsageLine:
        found = self.lines.get(name)
        if found is None:
            found = self.lines[name] = new_line(name)
        return found

    def answer(self, seq: int) -> UsageAnswer:
        """Return the lines in order. If they are too many for an answer, some are merged."""
        lines = [line for line in self.lines.values() if self._is_wanted(line)]
        for blanks in (("job",), ("job", "key"), ("job", "key", "user")):
            if len(lines) > LINES_MAX:
                lines = merged(lines, partial(_without, blanks))
        for letters in (DAY_LETTERS, MONTH_LETTERS):
            if len(lines) > LINES_MAX:
                lines = merged(lines, partial(_within, letters))
        charged, costs = ({}, {}) if self.user else (self.charged, self.costs)
        return UsageAnswer(sorted(lines, key=name_of), charged, seq, costs)

    def _is_wanted(self, line: UsageLine) -> bool:
        if self.user:
            return line.user == self.user and self.tenant in ("", line.tenant)
        return not self.tenant or self.tenant in (line.payer, line.tenant)


def period_of(period: str, at_ns: int) -> str:
    """Return the hour, day or month of a time in UTC; empty without a period."""
    if not period:
        return ""
    return datetime.fromtimestamp(at_ns // 1_000_000_000, UTC).strftime(WRITTEN[period])


def _within(letters: int, line: UsageLine) -> Name:
    """Return the name of the line for the longer period that begins its period's text."""
    name = _without(("job", "key", "user"), line)
    return name._replace(period=name.period[:letters])


def _without(gone: Sequence[str], line: UsageLine) -> Name:
    return name_of(line)._replace(**dict.fromkeys(gone, ""))
