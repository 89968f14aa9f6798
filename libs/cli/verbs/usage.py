"""`muster usage`."""

from typing import Final

import click

from libs.cli.gateway import Json, ask
from libs.cli.terminal.output import listed, print_table, print_value, tinted
from libs.cli.terminal.table import BOLD, Column
from libs.cli.use import costs_text, energy_text, gpu_hours, part_text
from libs.client.profile import read_profile

# The columns of names; the last three are shown when lines are told apart by them.
NAMES: Final = ("payer", "tenant", "user", "key", "model", "kind")
FURTHER: Final = ("gpu", "job", "period")
FLEXIBLE: Final = ("user", "model", "gpu")
COUNTS: Final = ("requests", "input_tokens", "output_tokens")
SUMS: Final = (
    Column("REQUESTS", right=True),
    Column("INPUT TOKENS", right=True),
    Column("OUTPUT TOKENS", right=True),
    Column("GPU SECONDS", right=True),
    Column("BUSY", right=True),
    Column("IDLE", right=True),
    Column("ENERGY", right=True),
    Column("COST", right=True),
)
FLEET: Final = (
    Column("GPU", flexible=True),
    Column("GPU HOURS", right=True),
    Column("BUSY", right=True),
    Column("IDLE", right=True),
    Column("NOT MEASURED", right=True),
    Column("RUNNING", right=True),
    Column("NOT ALLOCATED", right=True),
)
FLEET_PARTS: Final = (
    *("busy_share_ms", "idle_share_ms", "unmeasured_share_ms"),
    *("running_share_ms", "unallocated_share_ms"),
)
CSV_FIELDS: Final = (
    *("payer", "tenant", "user", "key", "model", "kind", "requests"),
    *("input_tokens", "output_tokens", "share_ms", "gpu_seconds"),
    *("gpu", "job", "period", "charges", "busy_share_ms", "idle_share_ms", "unmeasured_share_ms"),
    *("energy_wh", "cost_micros", "cost", "currency"),
)


@click.command(short_help="Show tokens, GPU time, energy and cost by tenant, user and model.")
@click.option(
    "--since",
    metavar="TIME",
    help="Start time, for example 2026-11-01T00:00:00Z, or 30d for 30 days ago.",
)
@click.option("--until", metavar="TIME", help="End time, in the same forms (default: now).")
@click.option(
    "--by",
    metavar="PARTS",
    help=(
        "Group by these, separated by commas: tenant, user, key, model, gpu, job, and one of hour, "
        "day or month (default: tenant,user,model)."
    ),
)
@click.option("--tenant", metavar="NAME", help="Show only what this tenant pays or uses.")
@click.option("--user", metavar="USER", help="Show only the use of this user.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with exact numbers.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
@listed
def command(
    since: str | None,
    until: str | None,
    by: str | None,
    tenant: str | None,
    user: str | None,
    as_csv: bool,
    as_json: bool,
    form: str,
    no_headers: bool,
) -> None:
    """Show tokens, GPU time, energy and cost by tenant, user and model.

    The payer is the tenant of the job or model. The lines of a payer add up to its charges, and the
    last line is the sum of all lines. A line of kind idle is the time in which a model's replicas
    had no request. A job or replica is charged when it ends. Operators also see a table of how much
    GPU time of the cluster was allocated.

    \b
    muster usage --since 30d
    muster usage --since 30d --by tenant,day
    muster usage --since 30d --user ada
    muster usage --since 2026-11-01T00:00:00Z --until 2026-12-01T00:00:00Z --by key --csv
    """
    query = {"since": since, "until": until, "by": by, "tenant": tenant, "user": user}
    query["fleet"] = "true"
    show_usage(query, as_csv, "answer" if as_json else form, no_headers)


def show_usage(query: dict[str, str | None], as_csv: bool, form: str, no_headers: bool) -> None:
    """Print what was used; the form "answer" is the whole answer as JSON."""
    found = ask(read_profile(), "GET", "/v1/usage", query)
    lines: list[Json] = found["usage"]
    if as_csv:
        _print_csv(lines)
    elif form == "answer":
        print_value(found, "json")
    elif not print_value(lines, form):
        _print_tables(found, not no_headers, form == "wide")


def _print_csv(lines: list[Json]) -> None:
    import csv
    import sys

    writer = csv.DictWriter(sys.stdout, CSV_FIELDS)
    writer.writeheader()
    writer.writerows(lines)


def _print_tables(found: Json, headers: bool, wide: bool) -> None:
    lines: list[Json] = found["usage"]
    names = [*NAMES, *(name for name in FURTHER if any(line.get(name) for line in lines))]
    columns = [Column(name.upper(), flexible=name in FLEXIBLE) for name in names]
    rows = [_row(line, names) for line in lines]
    if lines:
        rows.append(["total", *[""] * (len(names) - 1), *_sums(found["total"])])
    print_table([*columns, *SUMS], rows, headers, wide)
    if found["fleet"]:
        print(f"\n{tinted('GPU time of the cluster', BOLD)}")
        print_table(FLEET, [_fleet_row(line) for line in found["fleet"]], headers, wide)


def _row(line: Json, names: list[str]) -> list[str]:
    costs = {line["currency"]: line["cost_micros"]} if line["currency"] else {}
    return [
        *(str(line[name]) or "-" for name in names),
        *_sums({**line, "costs_micros": costs}),
    ]


def _sums(line: Json) -> list[str]:
    share_ms = line["share_ms"]
    return [
        *(str(line[count]) for count in COUNTS),
        f"{share_ms / 100_000:.3f}",
        part_text(line["busy_share_ms"], share_ms),
        part_text(line["idle_share_ms"], share_ms),
        energy_text(line["energy_wh"]),
        costs_text(line["costs_micros"]),
    ]


def _fleet_row(line: Json) -> list[str]:
    whole = line["capacity_share_ms"]
    parts = [part_text(line[part], whole) for part in FLEET_PARTS]
    return [line["gpu"] or "-", gpu_hours(whole), *parts]
