"""`muster usage`."""

from typing import Final

import click

from libs.cli.gateway import Json, ask
from libs.cli.terminal.output import listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile

COLUMNS: Final = (
    Column("PAYER"),
    Column("TENANT"),
    Column("USER", flexible=True),
    Column("KEY"),
    Column("MODEL", flexible=True),
    Column("KIND"),
    Column("REQUESTS", right=True),
    Column("INPUT TOKENS", right=True),
    Column("OUTPUT TOKENS", right=True),
    Column("GPU SECONDS", right=True),
)


@click.command(short_help="Show tokens and GPU time by tenant, user, key and model.")
@click.option(
    "--since",
    metavar="TIME",
    help="Start of the time: an instant, or a duration before now, for example 30d.",
)
@click.option("--until", metavar="TIME", help="End of the time (default: now).")
@click.option(
    "--by",
    metavar="PARTS",
    help="Some of tenant, user, key, model, separated by commas (default: tenant,user,model).",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with exact numbers.")
@listed
def command(
    since: str | None, until: str | None, by: str | None, as_csv: bool, form: str, no_headers: bool
) -> None:
    """Show tokens and GPU time by tenant, user, key and model.

    The lines of a payer add up to what it was charged in that time. The time in which a model's
    replicas had no request is its idle line. A job or replica is charged at its end.

    \b
    muster usage --since 30d
    muster usage --since 2026-11-01T00:00:00Z --until 2026-12-01T00:00:00Z --by key --csv
    """
    query = {"since": since, "until": until, "by": by}
    found = ask(read_profile(), "GET", "/v1/usage", query)
    lines: list[Json] = found["usage"]
    if as_csv:
        _print_csv(lines)
    elif not print_value(lines, form):
        print_table(COLUMNS, [_row(line) for line in lines], not no_headers, form == "wide")


def _print_csv(lines: list[Json]) -> None:
    import csv
    import sys

    fields = (
        *("payer", "tenant", "user", "key", "model", "kind", "requests"),
        *("input_tokens", "output_tokens", "share_ms", "gpu_seconds"),
    )
    writer = csv.DictWriter(sys.stdout, fields)
    writer.writeheader()
    writer.writerows(lines)


def _row(line: Json) -> list[str]:
    names = ("payer", "tenant", "user", "key", "model", "kind")
    counts = ("requests", "input_tokens", "output_tokens")
    return [
        *(str(line[name]) or "-" for name in names),
        *(str(line[count]) for count in counts),
        f"{line['gpu_seconds']:.3f}",
    ]
