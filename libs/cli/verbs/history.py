"""`muster history`."""

from typing import Final

import click

from libs.cli.flags.durations import age, between
from libs.cli.flags.sizes import show_size
from libs.cli.gateway import Json, ask
from libs.cli.jobs import utc_now
from libs.cli.terminal.output import complain, listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.cli.use import costs_text, energy_text
from libs.cli.verbs.usage import show_usage
from libs.client.profile import read_profile

COLUMNS: Final = (
    Column("JOB"),
    Column("TRY", right=True),
    Column("TENANT"),
    Column("USER", flexible=True),
    Column("GPUS", right=True),
    Column("MODEL", flexible=True),
    Column("ENDED"),
    Column("RAN", right=True),
    Column("GPU SECONDS", right=True),
    Column("GPU USE", right=True),
    Column("PEAK MEMORY", right=True),
    Column("ENERGY", right=True),
    Column("COST", right=True),
    Column("HINT", flexible=True),
)
CSV_FIELDS: Final = (
    *("job", "attempt", "tenant", "user", "model", "gpus", "gpu", "began_at", "ended_at"),
    *("recorded_at", "share_ms", "gpu_seconds", "busy_share_ms", "idle_share_ms"),
    *("unmeasured_share_ms", "cost", "devices", "used", "measured_s", "average_percent"),
    *("peak_percent", "memory_peak_bytes", "memory_bytes", "energy_wh", "shared", "simulated"),
)


@click.command(short_help="List jobs that have ended, with their use of GPUs and their cost.")
@click.option(
    "--since",
    metavar="TIME",
    help="Start time, for example 2026-11-01T00:00:00Z, or 7d for 7 days ago (default: 7d).",
    default="7d",
)
@click.option("--until", metavar="TIME", help="End time, in the same forms (default: now).")
@click.option("--user", metavar="USER", help="Show only jobs of this user.")
@click.option("--tenant", metavar="NAME", help="Show only jobs of this tenant.")
@click.option(
    "--by",
    metavar="PARTS",
    help=(
        "Show sums instead of attempts, grouped by these, separated by commas: tenant, user, "
        "model, gpu, and one of hour, day or month."
    ),
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000),
    default=200,
    help="Show at most this number of attempts, the newest ones (default: 200).",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with exact numbers.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
@listed
def command(
    since: str,
    until: str | None,
    user: str | None,
    tenant: str | None,
    by: str | None,
    limit: int,
    as_csv: bool,
    as_json: bool,
    form: str,
    no_headers: bool,
) -> None:
    """List jobs that have ended, with their use of GPUs and their cost.

    Each attempt of a job has a row, the newest first. The last row is the sum.

    \b
    muster history --since 30d --user ada
    muster history --since 30d --by user,month --csv
    """
    if by is not None:
        query = {"since": since, "until": until, "by": by, "tenant": tenant, "user": user}
        show_usage(query, as_csv, "answer" if as_json else form, no_headers)
        return
    query = {"since": since, "until": until, "user": user, "tenant": tenant, "limit": str(limit)}
    found = ask(read_profile(), "GET", "/v1/charges", query)
    if as_csv:
        _print_csv(found["charges"])
    elif not print_value(found if as_json else found["charges"], "json" if as_json else form):
        _print_table(found, not no_headers, form == "wide")


def _print_csv(rows: list[Json]) -> None:
    import csv
    import sys

    writer = csv.DictWriter(sys.stdout, CSV_FIELDS, extrasaction="ignore")
    writer.writeheader()
    writer.writerows({**row, **(row["use"] or {})} for row in rows)


def _print_table(found: Json, headers: bool, wide: bool) -> None:
    rows = [_row(charge) for charge in found["charges"]]
    if rows:
        total = found["total"]
        seconds = f"{total['share_ms'] / 100_000:.3f}"
        sums = [seconds, "", "", energy_text(total["energy_wh"]), costs_text(total["costs_micros"])]
        rows.append(["total", *[""] * 7, *sums, ""])
    print_table(COLUMNS, rows, headers, wide)
    if found["left_out"]:
        complain(f"{found['left_out']} older ones are left out: give --limit, --since or --user")


def _row(charge: Json) -> list[str]:
    use: Json = charge["use"] or {}
    now, memory = utc_now(), use.get("memory_peak_bytes")
    return [
        charge["job"],
        str(charge["attempt"]),
        charge["tenant"],
        charge["user"] or "-",
        str(charge["gpus"]),
        charge["model"] or "-",
        age(charge["ended_at"], now) or "-",
        between(charge["began_at"], charge["ended_at"], now) if charge["began_at"] else "-",
        f"{charge['gpu_seconds']:.3f}",
        f"{use['average_percent']}%" if use else "-",
        show_size(memory) if memory is not None else "-",
        energy_text(use.get("energy_wh")),
        costs_text(charge["costs_micros"]),
        "; ".join(use.get("hints") or ()),
    ]
