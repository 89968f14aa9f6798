"""Facts of the log as rows: sequence number, time, kind and summary."""

import json
from datetime import datetime
from typing import Final

from libs.cli.flags.durations import parse_instant
from libs.cli.gateway import Json, ask, job_path
from libs.cli.terminal.table import CYAN, DIM, Column
from libs.client.profile import Profile

COLUMNS: Final = (
    Column("SEQ", right=True),
    Column("TIME", colour_of=lambda _: DIM),
    Column("KIND", colour_of=lambda _: CYAN),
    Column("WHAT", flexible=True),
)
PAGE: Final = 1_000
PAGES_MAX: Final = 20
WIDE_COLUMNS: Final = (*COLUMNS, Column("WRITER"))
# Column widths of a followed log, whose later lines are not known yet.
SEQ_WIDTH: Final = 6
KIND_WIDTH: Final = 18


# Facts that a restarted agent records again for its running jobs.
REPEATED: Final = ("job.started", "job.finished", "job.released")


def read_history(profile: Profile, job_id: str) -> list[Json]:
    """Return the facts of a job, page after page, without repetitions."""
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
    """Return the facts without those that a restarted agent recorded again."""
    seen: set[str] = set()
    kept: list[Json] = []
    for fact in facts:
        words = json.dumps(fact.get("fact"), sort_keys=True)
        if fact.get("kind") not in REPEATED or words not in seen:
            kept.append(fact)
        seen.add(words)
    return kept


def row(fact: Json, wide: bool = False) -> list[str]:
    """Return the cells of a fact, with its time in the local time zone."""
    cells = [
        str(fact.get("seq", "")),
        clock(fact.get("at")),
        str(fact.get("kind", "")),
        str(fact.get("summary") or ""),
    ]
    return [*cells, str(fact.get("writer", ""))] if wide else cells


def clock(text: str | None) -> str:
    """Return the local time, `12:04:31.250`, with the date if it is not today."""
    instant = parse_instant(text)
    if instant is None:
        return "-"
    local = instant.astimezone()
    day = "" if local.date() == datetime.now().astimezone().date() else f"{local:%Y-%m-%d} "
    return f"{day}{local:%H:%M:%S}.{local.microsecond // 1000:03d}"
