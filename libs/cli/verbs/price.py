"""`muster price`: list the prices of GPUs, set one, or remove one."""

from typing import Final
from urllib.parse import quote

import click

from libs.cli.gateway import Json, ask
from libs.cli.terminal.output import formatted, listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile

COLUMNS: Final = (
    Column("NAME"),
    Column("PRICE PER GPU HOUR", right=True),
    Column("CURRENCY"),
    Column("SINCE"),
    Column("UNTIL"),
)


@click.group(short_help="List and set the prices of GPUs.", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """List and set the prices of GPUs.

    A price is for one GPU and one hour. It applies from the time when you set it. NAME is one or
    more whole words of the model name of GPUs, for example h100. If several prices fit a GPU, the
    NAME with the most words counts. The price any applies to all GPUs that no other price fits.

    \b
    muster price set h100 2.50 --currency EUR
    muster price
    """
    if context.invoked_subcommand is None:
        _print(ask(read_profile(), "GET", "/v1/prices")["prices"], "table", True)


@command.command("list")
@listed
def list_prices(form: str, no_headers: bool) -> None:
    """List prices, current and earlier ones."""
    _print(ask(read_profile(), "GET", "/v1/prices")["prices"], form, not no_headers)


@command.command("set")
@click.argument("name")
@click.argument("price")
@click.option(
    "--currency",
    metavar="CODE",
    help="Code of the currency, for example EUR (default: the currency of the last price).",
)
@formatted
def set_price(name: str, price: str, currency: str | None, form: str) -> None:
    """Set the price of one GPU for one hour, from now on."""
    body = {"price": price, **({"currency": currency} if currency else {})}
    _print(ask(read_profile(), "PUT", _path(name), body=body)["prices"], form, True)


@command.command("rm")
@click.argument("name")
def remove_price(name: str) -> None:
    """Remove a price. Earlier charges keep it."""
    ask(read_profile(), "DELETE", _path(name))
    print(f"price {name} is removed from now on")


def _path(name: str) -> str:
    return f"/v1/prices/{quote(name.lower(), safe='')}"


def _print(prices: list[Json], form: str, headers: bool) -> None:
    if not print_value(prices, form):
        print_table(COLUMNS, [_row(price) for price in prices], headers, form == "wide")


def _row(price: Json) -> list[str]:
    fields = ("name", "price", "currency", "since", "until")
    return [str(price[field] or "-") for field in fields]
