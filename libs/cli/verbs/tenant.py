"""`muster tenant list|set|show|rm`."""

from typing import Final
from urllib.parse import quote

import click

from libs.cli.flags.durations import DURATION, show_duration
from libs.cli.flags.numbers import Number
from libs.cli.flags.sizes import show_size
from libs.cli.gateway import Json, ask, ask_all
from libs.cli.terminal.output import formatted, listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile

GPU_HOURS: Final = ("gpu_hours", "gpu_hours_per")
LIMITS: Final = (
    "max_gpus",
    "max_waiting",
    "weight",
    *GPU_HOURS,
    "requests_per_minute",
    "tokens_per_minute",
    "shares_devices",
    "max_pool_bytes",
    "max_models",
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
    Column("POOLS", right=True),
    Column("MODELS", right=True),
    Column("KEYS", right=True),
)


@click.group(short_help="List, create, show and remove tenants and their limits.")
def command() -> None:
    """List, create, show and remove tenants and their limits.

    \b
    muster tenant set physics --gpus 16 --tokens-per-minute 200000
    muster tenant list
    """


@command.command("list")
@listed
def list_tenants(form: str, no_headers: bool) -> None:
    """List tenants with their usage and limits (- means no limit)."""
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
    help="Maximum GPUs in use at a time (0: no limit).",
)
@click.option(
    "--waiting",
    "max_waiting",
    type=click.IntRange(0),
    metavar="N",
    help="Maximum waiting jobs (0: the default, 200,000).",
)
@click.option(
    "--weight",
    type=click.IntRange(1),
    metavar="N",
    help="Share of the tenant when tenants compete (default: 100).",
)
@click.option(
    "--gpu-hours",
    type=click.IntRange(0),
    metavar="N",
    help="Budget of GPU hours (0: no limit).",
)
@click.option(
    "--gpu-hours-per",
    type=click.Choice(["life", "month"]),
    help="Period of the budget: the tenant's whole life (default), or each calendar month (UTC).",
)
@click.option(
    "--requests-per-minute",
    type=click.IntRange(0),
    metavar="N",
    help="Maximum requests to models per minute (0: no limit).",
)
@click.option(
    "--tokens-per-minute",
    type=click.IntRange(0),
    metavar="N",
    help="Maximum tokens to and from models per minute (0: no limit).",
)
@click.option(
    "--pool",
    "max_pool_bytes",
    metavar="SIZE",
    help="Maximum size of all memory pools of its jobs, for example 40GiB (0: no limit).",
)
@click.option(
    "--models",
    "max_models",
    type=click.IntRange(0),
    metavar="N",
    help="Maximum deployed models (0: the default, 200).",
)
@click.option(
    "--shares-devices/--no-shares-devices",
    default=None,
    help="Let jobs share a GPU with jobs of other tenants that allow it (default: no).",
)
@formatted
def set_tenant(name: str, form: str, **given: object) -> None:
    """Create a tenant, or change the limits that you give."""
    profile = read_profile()
    tenants = {tenant["name"]: tenant for tenant in ask_all(profile, "/v1/tenants", "tenants")}
    present: dict[str, Json] = tenants.get(name, {})
    limits: dict[str, object] = {limit: present[limit] for limit in LIMITS if limit in present}
    limits |= {limit: value for limit, value in given.items() if value is not None}
    _print(ask(profile, "PUT", _path(name), body=limits), form)


@command.command("idle")
@click.argument("name")
@click.argument("action", type=click.Choice(["off", "warn", "checkpoint", "release"]))
@click.option(
    "--after",
    "idle_for",
    type=DURATION,
    metavar="DURATION",
    help="Warn when all GPUs of a job were idle for this time (default: 30m, at least 1m).",
)
@click.option(
    "--grace",
    type=DURATION,
    metavar="DURATION",
    help="Time from the warning until the job is ended (default: 5m).",
)
@formatted
def set_idle_policy(
    name: str, action: str, idle_for: int | None, grace: int | None, form: str
) -> None:
    """Choose what happens to jobs whose GPUs are all idle.

    The default is off. After the time --after, warn records a warning and does nothing else. With
    checkpoint or release, the job ends if its GPUs are still idle at the end of --grace. With
    checkpoint the job gets its own time to save its work, with release it ends within 10 s.
    """
    times = {"idle_for": idle_for, "grace": grace}
    body = {
        "action": action,
        **{field: value for field, value in times.items() if value is not None},
    }
    tenant = ask(read_profile(), "PUT", f"{_path(name)}/idle", body=body)
    if not print_value(tenant, form):
        print(f"tenant {name}: {_idle(tenant)}")


@command.command("rm")
@click.argument("name")
def remove_tenant(name: str) -> None:
    """Remove a tenant that has no keys, models or active jobs.

    Its name cannot be used again.
    """
    ask(read_profile(), "DELETE", _path(name))
    print(f"tenant {name} is removed")


def _idle(tenant: Json) -> str:
    action = tenant["idle_action"]
    if action == "off":
        return "jobs with idle GPUs go on"
    ends = f", {action} {show_duration(tenant['idle_grace_s'])} later" if action != "warn" else ""
    return f"jobs with idle GPUs are warned after {show_duration(tenant['idle_s'])}{ends}"


def _path(name: str) -> str:
    return f"/v1/tenants/{quote(name, safe='')}"


def _print(tenant: Json, form: str) -> None:
    if not print_value(tenant, form):
        print_table(COLUMNS, [_row(tenant)], True, form == "wide")


def _row(tenant: Json) -> list[str]:
    from libs.common.state.tenant import MODELS_DEFAULT

    return [
        tenant["name"],
        _used_of_limit(tenant["gpus_held"], tenant["max_gpus"]),
        _used_of_limit(tenant["jobs_waiting"], tenant["max_waiting"]),
        _used_of_limit(tenant["gpu_hours_used"], tenant["gpu_hours"])
        + (" a month" if tenant["gpu_hours_per"] == "month" else ""),
        _limit(tenant["requests_per_minute"]),
        _limit(tenant["tokens_per_minute"]),
        str(tenant["weight"]),
        "yes" if tenant["shares_devices"] else "no",
        _pools(tenant["pool_bytes_held"], tenant["max_pool_bytes"]),
        _limit(tenant.get("max_models", 0) or MODELS_DEFAULT),
        str(tenant["keys"]),
    ]


def _used_of_limit(used: float, limit: float) -> str:
    return f"{used:g}/{_limit(limit)}"


def _pools(held: int, limit: int) -> str:
    return f"{show_size(held)}/{show_size(limit) if limit else '-'}"


def _limit(value: float) -> str:
    return f"{value:g}" if value else "-"
