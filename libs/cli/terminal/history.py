"""Facts of the log as lines: number, time, kind, what it says."""

import json
from datetime import datetime
from typing import Final

from libs.cli.flags.durations import parse_instant
from libs.cli.gateway import Json, ask, job_path
from libs.cli.profile import Profile
from libs.cli.terminal.table import CYAN, DIM, Column

COLUMNS: Final = (
    Column("SEQ", right=True),
    Column("TIME", colour_of=lambda _: DIM),
    Column("KIND", colour_of=lambda _: CYAN),
    Column("WHAT", flexible=True),
)
PAGE: Final = 1_000
PAGES_MAX: Final = 20
WIDE_COLUMNS: Final = (*COLUMNS, Column("WRITER"))
# Widths of a followed log, whose later lines are not known yet.
SEQ_WIDTH: Final = 6
KIND_WIDTH: Final = 18


# What an agent that was started again says again of its living jobs.
SAID_AGAIN: Final = ("job.started", "job.finished", "job.released")


def read_history(profile: Profile, job_id: str) -> list[Json]:
    """All facts of a job, page after page; what an agent said again stands there once."""
    facts: list[Json] = []
    after: object = None
    for _ in range(PAGES_MAX):
        page = ask(profile, "GET", job_path(job_id, "history"), {"limit": PAGE, "after": after})
        facts += page["facts"]
        after = page.get("next")
        if not after:
            break
    return once(facts)


def once(facts: list[Json]) -> list[Json]:
    """Without what an agent said again."""
    said: set[str] = set()
    kept: list[Json] = []
    for fact in facts:
        words = json.dumps(fact.get("fact"), sort_keys=True)
        if fact.get("kind") not in SAID_AGAIN or words not in said:
            kept.append(fact)
        said.add(words)
    return kept


def row(fact: Json, wide: bool = False) -> list[str]:
    """The cells of a fact; its time on this machine's clock, with the day where it is not today."""
    cells = [
        str(fact.get("seq", "")),
        clock(fact.get("at")),
        str(fact.get("kind", "")),
        str(fact.get("summary") or ""),
    ]
    return [*cells, str(fact.get("writer", ""))] if wide else cells


def clock(text: str | None) -> str:
    """`12:04:31.250`, or `2025-01-31 12:04:31.250` of another day."""
    instant = parse_instant(text)
    if instant is None:
        return "-"
    local = instant.astimezone()
    day = "" if local.date() == datetime.now().astimezone().date() else f"{local:%Y-%m-%d} "
    return f"{day}{local:%H:%M:%S}.{local.microsecond // 1000:03d}"
