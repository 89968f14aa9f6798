"""`muster whoami`."""

import click

from libs.cli.gateway import ask
from libs.cli.profile import read_profile
from libs.cli.terminal.output import formatted, print_value


@click.command(short_help="Show whose key is used here and what it may do.")
@formatted
def command(form: str) -> None:
    """Show whose key is used here and what it may do."""
    profile = read_profile()
    found = ask(profile, "GET", "/v1/whoami")
    if not print_value({**found, "gateway": profile.url}, form):
        print(
            f"{found['user']} of tenant {found['tenant']}, {found['role']} (key "
            f"{found['key_id']}) at {profile.url}"
        )
