"""`muster tenant list|set|show|rm`."""

from typing import Final
from urllib.parse import quote

import click

from libs.cli.flags.numbers import Number
from libs.cli.gateway import Json, ask, ask_all
from libs.cli.profile import read_profile
from libs.cli.terminal.output import formatted, listed, print_table, print_value
from libs.cli.terminal.table import Column

GPU_HOURS: Final = ("gpu_hours", "gpu_hours_per")
LIMITS: Final = (
    "max_gpus",
    "max_waiting",
    "weight",
    *GPU_HOURS,
    "requests_per_minute",
    "tokens_per_minute",
    "shares_devices",
)
COLUMNS: Final = (
    Column("TENANT"),
    Column("GPUS", right=True),
    Column("WAITING", right=True),
    Column("GPU HOURS", right=True),
    Column("REQUESTS/MIN", right=True),
    Column("TOKENS/MIN", right=True),
    Column("WEIGHT", right=True),
    Column("SHARES"),
    Column("KEYS", right=True),
)


@click.group(short_help="List, set, show and remove tenants and their limits.")
def command() -> None:
    """List, set, show and remove tenants and their limits.

    \b
    muster tenant set physics --gpus 16 --tokens-per-minute 200000
    muster tenant list
    """


@command.command("list")
@listed
def list_tenants(form: str, no_headers: bool) -> None:
    """List tenants: what each uses, of how much it may (- is no limit)."""
    tenants = ask_all(read_profile(), "/v1/tenants", "tenants")
    if not print_value(tenants, form):
        print_table(COLUMNS, [_row(tenant) for tenant in tenants], not no_headers, form == "wide")


@command.command("show")
@click.argument("name")
@formatted
def show_tenant(name: str, form: str) -> None:
    """Show one tenant."""
    _print(ask(read_profile(), "GET", _path(name)), form)


@command.command("set")
@click.argument("name")
@click.option(
    "--gpus",
    "max_gpus",
    type=Number(0),
    metavar="N",
    help="GPUs in use at one time; 0 is no limit.",
)
@click.option(
    "--waiting",
    "max_waiting",
    type=click.IntRange(0),
    metavar="N",
    help="Jobs that may wait; 0 is the default of 200,000.",
)
@click.option(
    "--weight",
    type=click.IntRange(1),
    metavar="N",
    help="Its part where tenants compete (default 100).",
)
@click.option(
    "--gpu-hours",
    type=click.IntRange(0),
    metavar="N",
    help="Its budget of GPU hours; 0 is no limit.",
)
@click.option(
    "--gpu-hours-per",
    type=click.Choice(["life", "month"]),
    help="For its whole life (default), or for each month of UTC.",
)
@click.option(
    "--requests-per-minute", type=click.IntRange(0), metavar="N", help="To models; 0 is no limit."
)
@click.option(
    "--tokens-per-minute",
    type=click.IntRange(0),
    metavar="N",
    help="To and from models; 0 is no limit.",
)
@click.option(
    "--shares-devices/--no-shares-devices",
    default=None,
    help="Whether its jobs may share a GPU with those of other tenants.",
)
@formatted
def set_tenant(name: str, form: str, **given: object) -> None:
    """Make a tenant, or change what is given of its limits."""
    profile = read_profile()
    tenants = {tenant["name"]: tenant for tenant in ask_all(profile, "/v1/tenants", "tenants")}
    known = {limit: tenants[name][limit] for limit in LIMITS} if name in tenants else {}
    _print(
        ask(
            profile,
            "PUT",
            _path(name),
            body={**known, **{limit: value for limit, value in given.items() if value is not None}},
        ),
        form,
    )


@command.command("rm")
@click.argument("name")
def remove_tenant(name: str) -> None:
    """Remove a tenant that has no keys, models or live jobs."""
    ask(read_profile(), "DELETE", _path(name))
    print(f"tenant {name} is removed")


def _path(name: str) -> str:
    return f"/v1/tenants/{quote(name, safe='')}"


def _print(tenant: Json, form: str) -> None:
    if not print_value(tenant, form):
        print_table(COLUMNS, [_row(tenant)], True, form == "wide")


def _row(tenant: Json) -> list[str]:
    return [
        tenant["name"],
        _of(tenant["gpus_held"], tenant["max_gpus"]),
        _of(tenant["jobs_waiting"], tenant["max_waiting"]),
        _of(tenant["gpu_hours_used"], tenant["gpu_hours"])
        + (" a month" if tenant["gpu_hours_per"] == "month" else ""),
        _limit(tenant["requests_per_minute"]),
        _limit(tenant["tokens_per_minute"]),
        str(tenant["weight"]),
        "yes" if tenant["shares_devices"] else "no",
        str(tenant["keys"]),
    ]


def _of(used: float, limit: float) -> str:
    return f"{used:g}/{_limit(limit)}"


def _limit(value: float) -> str:
    return f"{value:g}" if value else "-"
