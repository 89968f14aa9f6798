"""`muster maintenance`."""

from urllib.parse import quote

import click

from libs.cli.flags.durations import DURATION
from libs.cli.gateway import ask
from libs.client.profile import read_profile

# The longest name of a reservation.
NAME_MAX = 63


@click.command(short_help="Keep nodes free of jobs for a period.")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
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
@click.option("--name", metavar="NAME", help="Name (default: maintenance- and the first NODE).")
def command(nodes: tuple[str, ...], start: str | None, duration: int, name: str | None) -> None:
    """Keep nodes free of jobs for a period.

    Until the start, only jobs whose time limit ends before it may start on the nodes. Jobs that
    still run at the start continue. To end a maintenance, use muster unreserve NAME.

    \b
    muster maintenance gpu-07 --from 2026-12-24T08:00:00Z --for 4h
    """
    named = name or f"maintenance-{nodes[0]}"[:NAME_MAX]
    body = {"nodes": nodes, "start": start or "", "duration": duration, "maintenance": True}
    kept = ask(read_profile(), "PUT", f"/v1/reservations/{quote(named, safe='')}", body=body)
    click.echo(f"{kept['name']}: {', '.join(kept['nodes'])} from {kept['start']} to {kept['end']}")
