"""`muster cluster verify`: compare the members' states with one that is computed from the log."""

from typing import Final

import click

from libs.cli.gateway import ask
from libs.cli.terminal.output import formatted, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile

COLUMNS: Final = (
    Column("MEMBER"),
    Column("STATE"),
    Column("PARTS"),
    Column("FIRST KEY", flexible=True),
)
# Folding a long log takes a while.
ANSWER_S: Final = 120.0


@click.command("verify")
@formatted
def verify(form: str) -> int:
    """Check that the gateway and the leading scheduler hold the state that the log gives.

    The leading scheduler records hashes of its state in the log. For this check, the gateway takes
    the newest snapshot before the last recorded hash and applies the commits up to that hash. It
    compares the resulting state with the hash, with its own state and with the leading scheduler's.
    It names the parts and the first entry that differ. Other gateways and schedulers are not asked.

    The command exits with 1 if a state differs, or if the newest hash is of another version.

    \b
    muster cluster verify
    """
    found = ask(read_profile(), "GET", "/v1/cluster/verify", answer_s=ANSWER_S)
    if not print_value(found, form):
        print(f"after commit {found['seq']}:")
        print_table(COLUMNS, [_row(each) for each in found["members"]])
    return 0 if found["agrees"] else 1


def _row(member: dict[str, object]) -> list[str]:
    state = str(member["state"])
    detail = f" ({member['detail']})" if member["detail"] else ""
    parts = member["parts"]
    named = ", ".join(map(str, parts)) if isinstance(parts, list) else ""
    return [str(member["name"]), state + detail, named or "-", str(member["key"] or "-")]
