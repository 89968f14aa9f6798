"""`muster whoami`."""

import click

from libs.cli.gateway import ask
from libs.cli.profile import read_profile
from libs.cli.terminal.output import formatted, print_value


@click.command(short_help="Show the user, tenant and role of the key in use.")
@formatted
def command(form: str) -> None:
    """Show the user, tenant and role of the key in use."""
    profile = read_profile()
    found = ask(profile, "GET", "/v1/whoami")
    if not print_value({**found, "gateway": profile.url}, form):
        print(
            f"{found['user']} of tenant {found['tenant']}, {found['role']} (key "
            f"{found['key_id']}) at {profile.url}"
        )
