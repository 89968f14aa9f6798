"""`muster maintenance`."""

from urllib.parse import quote

import click

from libs.cli.flags.jobflags import DURATION
from libs.cli.gateway import ask
from libs.cli.profile import read_profile

# A name has so many letters at most.
NAME_MAX = 63


@click.command(short_help="Keep a node free of jobs during some time.")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@click.option(
    "--from", "start", metavar="TIME", help="When it begins: 2026-12-24T08:00:00Z (default: now)."
)
@click.option("--for", "duration", type=DURATION, required=True, help="How long it lasts: 2h, 5d.")
@click.option(
    "--name", metavar="NAME", help="A name for it (default: maintenance-NODE, of the first)."
)
def command(nodes: tuple[str, ...], start: str | None, duration: int, name: str | None) -> None:
    """Keep a node free of jobs during some time.

    From now on only jobs begin there whose time limit ends before that. What runs there when it
    begins goes on. `muster unreserve` ends it.

    \b
    muster maintenance gpu-07 --from 2026-12-24T08:00:00Z --for 4h
    """
    named = name or f"maintenance-{nodes[0]}"[:NAME_MAX]
    body = {"nodes": nodes, "start": start or "", "duration": duration, "maintenance": True}
    kept = ask(read_profile(), "PUT", f"/v1/reservations/{quote(named, safe='')}", body=body)
    click.echo(f"{kept['name']}: {', '.join(kept['nodes'])} from {kept['start']} to {kept['end']}")
