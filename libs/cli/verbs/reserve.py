"""`muster reserve`."""

from typing import Any
from urllib.parse import quote

import click

from libs.cli.flags.jobflags import DURATION, pairs
from libs.cli.gateway import ask
from libs.cli.profile import read_profile


@click.command(short_help="Keep nodes for some tenants or users during some time.")
@click.argument("name")
@click.option(
    "--node", "nodes", multiple=True, metavar="NODE", help="A node; may be given more than once."
)
@click.option(
    "--count",
    type=click.IntRange(1),
    metavar="N",
    help="So many nodes, whichever are nobody's then.",
)
@click.option(
    "--node-label",
    "node_labels",
    multiple=True,
    metavar="K=V",
    help="Of the nodes with this label (default: all of them).",
)
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    metavar="NAME",
    help="For jobs of this tenant; may be given more than once.",
)
@click.option(
    "--for-user",
    "users",
    multiple=True,
    metavar="USER",
    help="For jobs of this user; may be given more than once.",
)
@click.option(
    "--from",
    "start",
    metavar="TIME",
    help=(
        "Start as a date and time, for example 2026-12-24T08:00:00Z (UTC unless it says "
        "otherwise; default: now)."
    ),
)
@click.option("--for", "duration", type=DURATION, required=True, help="How long it lasts: 2h, 5d.")
def command(name: str, **given: Any) -> None:  # noqa: ANN401  what click gives
    """Keep nodes for some tenants or users during some time.

    Only their jobs that say `--reservation NAME` begin there then. Others begin there before, if
    their time limit ends in time. What runs there when it begins goes on. One of the same name is
    exchanged.

    \b
    muster reserve course --count 2 --node-label gpu=h100 --tenant students \\
        --from 2026-12-01T08:00:00Z --for 8h
    muster run --reservation course -- python exercise.py
    """
    body = {field: value for field, value in given.items() if value}
    if given["node_labels"]:
        body["node_labels"] = pairs(given["node_labels"], "--node-label")
    kept = ask(read_profile(), "PUT", f"/v1/reservations/{quote(name, safe='')}", body=body)
    click.echo(f"{kept['name']}: {', '.join(kept['nodes'])} from {kept['start']} to {kept['end']}")
