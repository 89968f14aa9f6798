"""`muster log`: print the facts of the log, or the access records."""

import json
import time
from collections import deque
from typing import Final

import click

from libs.cli.faults import Cut, Unreachable
from libs.cli.gateway import Json, ask, opened
from libs.cli.terminal import history
from libs.cli.terminal.access import show_access
from libs.cli.terminal.output import coloured, listed, print_table, print_value, terminal_width
from libs.cli.terminal.table import CYAN, DIM, GAP, clean, cut, paint
from libs.client.profile import Profile, away_s, read_profile
from libs.client.timing import Patience
from libs.common.errors import Refused

PAGE: Final = 1_000
LAST: Final = 1_000
FOLLOW_LAST: Final = 10
AWAY_PAUSE_S: Final = 2.0

Wanted = dict[str, object]


@click.command(short_help="Print the log of facts.")
@click.option("-j", "--job", metavar="JOB", help="Show only facts about this job.")
@click.option("--node", metavar="NODE", help="Show only facts about this node.")
@click.option(
    "-k",
    "--kind",
    metavar="KIND",
    help="Show only this kind of fact, for example job.placed or node.lost.",
)
@click.option(
    "--since",
    metavar="WHEN",
    help="Start at this time: 2d (two days ago), or 2026-12-24T18:00:00Z.",
)
@click.option("--until", metavar="WHEN", help="End at this time, in the same forms.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="Show the last N facts or requests (default: 1000, or 10 with -f).",
)
@click.option(
    "-f", "--follow", is_flag=True, help="Follow the log: print new facts as they are recorded."
)
@click.option(
    "--access",
    is_flag=True,
    help="Show requests to the gateway instead of facts (for operators).",
)
@click.option("--denied", is_flag=True, help="With --access: show only requests that were denied.")
@listed
def command(
    limit: int | None,
    follow: bool,
    form: str,
    no_headers: bool,
    access: bool,
    denied: bool,
    **wanted: str | None,
) -> None:
    """Print the log of facts.

    Access records are shown with --access, or as facts with --kind access.recorded.

    \b
    muster log --job train
    muster log --kind node.lost --since 7d
    muster log -f
    muster log -f -o json | jq .kind      # one JSON object per line
    muster log --access --denied --since 1d
    """
    profile = read_profile()
    if access or denied:
        if follow or any(wanted[name] for name in ("job", "node", "kind")):
            raise Refused(
                "--access works only with --since, --until, --denied and -n: remove the "
                "other options"
            )
        show_access(
            profile,
            filters={**wanted, "denied": denied or None},
            limit=limit or LAST,
            form=form,
            headers=not no_headers,
        )
        return
    if follow:
        _follow(profile, dict(wanted), limit or (None if wanted["since"] else FOLLOW_LAST), form)
        return
    facts = _read(profile, dict(wanted), limit or LAST)
    if not print_value(facts, form):
        wide = form == "wide"
        rows = [history.row(fact, wide) for fact in facts]
        print_table(history.WIDE_COLUMNS if wide else history.COLUMNS, rows, not no_headers, wide)


def _read(profile: Profile, wanted: Wanted, limit: int) -> list[Json]:
    """Return the last `limit` facts that match. Without a filter, read only the end of the log."""
    facts: deque[Json] = deque(maxlen=limit)
    query: Wanted = {**wanted, "limit": PAGE, "last": None if any(wanted.values()) else limit}
    while True:
        page = ask(profile, "GET", "/v1/events", query)
        facts.extend(page["events"])
        if not page["more"]:
            return list(facts)
        query = {**query, "after": page["next"], "last": None}


def _follow(profile: Profile, wanted: Wanted, limit: int | None, form: str) -> None:
    """Print one line per fact. After a broken connection, continue behind the last number."""
    query: Wanted = {**wanted, "follow": 1, "last": limit}
    patience = Patience(away_s())
    while True:
        try:
            with opened(profile, "/v1/events", query) as stream:
                patience.reset()
                for line in stream.lines():
                    fact = json.loads(line)
                    _print_line(fact, form)
                    query = {**query, "after": fact["seq"], "last": None}
        except (Unreachable, Cut):
            if "after" not in query or patience.pause_s(time.monotonic()) is None:
                raise
        time.sleep(AWAY_PAUSE_S)


def _print_line(fact: Json, form: str) -> None:
    if form == "json":
        print(json.dumps(fact, ensure_ascii=False), flush=True)
        return
    seq, at, kind, *rest = history.row(fact, form == "wide")
    kind = f"{kind:<{history.KIND_WIDTH}}"
    seq = f"{seq:>{history.SEQ_WIDTH}}"
    text = clean(GAP.join(rest))
    room = terminal_width() - len(GAP.join((seq, at, kind, "")))
    text = cut(text, room) if room > 0 and form != "wide" else text
    parts = (seq, paint(at, DIM), paint(kind, CYAN), text) if coloured() else (seq, at, kind, text)
    print(GAP.join(parts), flush=True)
