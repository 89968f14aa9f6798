"""`muster reserve`."""

from typing import Any
from urllib.parse import quote

import click

from libs.cli.flags.durations import DURATION
from libs.cli.flags.jobflags import pairs
from libs.cli.gateway import ask
from libs.client.profile import read_profile


@click.command(short_help="Reserve nodes for tenants or users for a period.")
@click.argument("name")
@click.option(
    "--node", "nodes", multiple=True, metavar="NODE", help="Reserve this node (repeatable)."
)
@click.option(
    "--count",
    type=click.IntRange(1),
    metavar="N",
    help="Reserve N nodes that are not reserved at that time.",
)
@click.option(
    "--node-label",
    "node_labels",
    multiple=True,
    metavar="K=V",
    help="With --count: choose among nodes with this label (repeatable).",
)
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    metavar="NAME",
    help="Admit jobs of this tenant (repeatable).",
)
@click.option(
    "--for-user",
    "users",
    multiple=True,
    metavar="TENANT/USER",
    help="Admit jobs of this user (repeatable). With one tenant, the user's name is enough.",
)
@click.option(
    "--from",
    "start",
    metavar="TIME",
    help=(
        "Start time, for example 2026-12-24T08:00:00Z (default: now). Without a time zone it is "
        "UTC."
    ),
)
@click.option(
    "--for", "duration", type=DURATION, required=True, help="Duration, for example 2h or 5d."
)
def command(name: str, **given: Any) -> None:  # noqa: ANN401  what click gives
    """Reserve nodes for tenants or users for a period.

    During the reservation, only jobs of these tenants or users that give --reservation NAME start
    on the nodes. Before it begins, other jobs start there only if their time limit ends in time.
    Jobs that still run when it begins continue. A reservation with the same name is replaced.

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
