"""The table of `muster ps --elements`: the elements of an array."""

from typing import Any, Final

from libs.cli.gateway import ask
from libs.cli.terminal.table import Column, state_colour
from libs.client.profile import Profile

COLUMNS: Final = (
    Column("NUMBER", right=True),
    Column("STATE", colour_of=state_colour),
    Column("EXIT", right=True),
    Column("JOB", flexible=True),
    Column("REASON", flexible=True),
)
PAGE: Final = 1_000


def read_elements(profile: Profile, array: str, states: tuple[str, ...], limit: int) -> list[Any]:
    """Return up to `limit` elements of the array in these states (none: all), page after page."""
    elements: list[Any] = []
    after: object = 0
    while after is not None and len(elements) < limit:
        page = ask(
            profile, "GET", f"/v1/jobs/{array}/elements", {"after": after or None, "limit": PAGE}
        )
        elements += [each for each in page["elements"] if not states or each["state"] in states]
        after = page["next"]
    return elements[:limit]


def element_row(element: Any) -> tuple[str, ...]:  # noqa: ANN401 - JSON
    """Return the columns of an element."""
    code = element["exit_code"]
    return (
        str(element["number"]),
        element["state"],
        "" if code is None else str(code),
        element["job"],
        element["reason"],
    )
