"""`muster leases`: show or choose the lease profile."""

import click

from libs.cli.gateway import Json, ask
from libs.cli.terminal.output import formatted, print_value
from libs.client.profile import read_profile

PROFILES = ("default", "fast")


@click.command(short_help="Show or choose how soon a lost node is noticed.")
@click.argument("profile", required=False, type=click.Choice(PROFILES), metavar="[default|fast]")
@formatted
def command(profile: str | None, form: str) -> None:
    """Show or choose the lease profile: how soon a lost node is noticed.

    With the profile default, the jobs of a lost node start elsewhere after about 15 s. With fast
    they start after about 5 s, but a node that is cut off ends its jobs after 2.3 s already, and
    agents send more heartbeats.

    \b
    muster leases
    muster leases fast
    """
    if profile is None:
        shown = ask(read_profile(), "GET", "/v1/leases")
    else:
        shown = ask(read_profile(), "POST", "/v1/leases", body={"profile": profile})
    if not print_value(shown, form):
        print(_words(shown))


def _words(shown: Json) -> str:
    times = ", ".join(
        f"{name} {shown[f'{name}_ms'] / 1_000:g} s" for name in ("heartbeat", "lease", "margin")
    )
    changing = "" if shown["settled"] else " (not all agents use it yet)"
    return f"{shown['profile']}: {times}{changing}"
