"""Access records as a table, for `muster log --access`: the user, the request, the status."""

from collections import deque
from typing import Final

from libs.cli.gateway import Json, Query, ask
from libs.cli.terminal.history import clock
from libs.cli.terminal.output import complain, print_table, print_value
from libs.cli.terminal.table import DIM, GREEN, RED, Column
from libs.client.profile import Profile
from libs.common.quantities import counted

PAGE: Final = 1_000
COLUMNS: Final = (
    Column("TIME", colour_of=lambda _: DIM),
    Column("WHO", flexible=True),
    Column("STATUS", right=True, colour_of=lambda text: GREEN if text < "400" else RED),
    Column("WHAT", flexible=True),
    Column("FROM"),
    Column("DENIED", flexible=True),
)
WIDE_COLUMNS: Final = (
    *COLUMNS,
    Column("KEY"),
    Column("REQUEST"),
    Column("GATEWAY"),
    Column("SEQ", right=True),
)


def show_access(profile: Profile, filters: Query, limit: int, form: str, headers: bool) -> None:
    """Print the last `limit` access records that match."""
    rows: deque[Json] = deque(maxlen=limit)
    query, dropped = {**filters, "limit": PAGE}, 0
    while True:
        page = ask(profile, "GET", "/v1/access", query)
        rows.extend(page["access"])
        dropped += page["dropped"]
        if not page["more"]:
            break
        query = {**query, "after": page["next"]}
    if not print_value(list(rows), form):
        wide = form == "wide"
        print_table(
            WIDE_COLUMNS if wide else COLUMNS, [_row(each, wide) for each in rows], headers, wide
        )
    if dropped:
        complain(
            f"{counted(dropped, 'access record')} of that time could not be stored: the log was "
            "full or did not answer"
        )


def _row(entry: Json, wide: bool) -> list[str]:
    requester = f"{entry['user']}@{entry['tenant']}" if entry["user"] else "-"
    what = " ".join(
        (
            entry["method"],
            entry["route"],
            *entry["ids"],
            entry.get("model", ""),
            entry.get("detail", ""),
        )
    ).strip()
    cells = [
        clock(entry["at"]),
        requester,
        str(entry["status"] or "gone"),
        what,
        entry["source"],
        entry["denied"],
    ]
    return (
        [*cells, entry["key_id"] or "-", entry["request_id"], entry["gateway"], str(entry["seq"])]
        if wide
        else cells
    )
