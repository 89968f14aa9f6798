"""`muster version`: print the versions of this command, the gateway and the agents."""

from collections import Counter

import click

from libs.cli.gateway import Json, ask, ask_all
from libs.cli.terminal.output import formatted, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile
from libs.common import installed
from libs.common.errors import MusterError

COLUMNS = (Column("PART"), Column("VERSION"), Column("DETAIL", flexible=True))


def version_line() -> str:
    """`muster 0.1.0`."""
    return f"muster {installed.version()}"


@click.command(short_help="Print the versions of this command, the gateway and the agents.")
@click.option(
    "--client",
    is_flag=True,
    help="Print only the version of this command; do not contact the gateway.",
)
@formatted
def command(client: bool, form: str) -> None:
    """Print the versions of this command, the gateway and the agents.

    If the gateway does not answer, the command prints that as a row and still exits with 0.
    """
    rows = [_row("client", installed.version(), "")] + ([] if client else _cluster())
    if print_value(rows, form):
        return
    if client:
        print(version_line())
    else:
        print_table(COLUMNS, [list(row.values()) for row in rows], wide=form == "wide")


def _row(part: str, version: str, detail: str) -> dict[str, str]:
    return {"part": part, "version": version, "detail": detail}


def _cluster() -> list[dict[str, str]]:
    profile = read_profile()
    try:
        gateway = ask(profile, "GET", "/v1/version")
        agents = _agents(ask_all(profile, "/v1/nodes", "nodes"))
    except MusterError as error:
        return [_row("gateway", "?", str(error))]
    return [_row("gateway", str(gateway["version"]), profile.url), *agents]


def _agents(nodes: list[Json]) -> list[dict[str, str]]:
    """Return one row per version of the agents, with up to four nodes named."""
    counted = Counter(str(node["version"]) for node in nodes)
    named = {
        version: [str(node["id"]) for node in nodes if node["version"] == version]
        for version in counted
    }
    return [
        _row("agents", version, ", ".join(named[version]) if count <= 4 else f"{count} nodes")
        for version, count in sorted(counted.items())
    ]
