"""`muster state`: print the cluster's state at a sequence number of the log."""

import json
from typing import Final

import click

from libs.cli.gateway import ask
from libs.cli.terminal.output import print_value
from libs.client.profile import read_profile

FOLD_S: Final = 600.0


@click.command(short_help="Print the cluster's state at a sequence number of the log.")
@click.option(
    "--at", type=click.IntRange(0), metavar="SEQ", help="Sequence number of the log (default: now)."
)
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["json", "yaml"]),
    default="json",
    help="Output format.",
)
def command(at: int | None, form: str) -> None:
    """Print the cluster's state at a sequence number of the log.

    \b
    muster state --at 1042 > before.json
    muster state --at 1043 | diff before.json -
    """
    profile = read_profile()
    if at is None:
        at = int(ask(profile, "GET", "/v1/cluster")["seq"])
    state = ask(profile, "GET", "/v1/state", {"at": at}, answer_s=FOLD_S)
    if form == "yaml":
        print_value(state, form)
    else:
        print(json.dumps(state, indent=2, sort_keys=True, ensure_ascii=False))
