"""`muster whoami`."""

import click

from libs.cli.gateway import ask
from libs.cli.terminal.output import formatted, print_value
from libs.client.profile import read_profile


@click.command(short_help="Show the user, tenant and role of the key in use.")
@formatted
def command(form: str) -> None:
    """Show the user, tenant and role of the key in use."""
    profile = read_profile()
    answer = ask(profile, "GET", "/v1/whoami")
    if not print_value({**answer, "gateway": profile.url}, form):
        print(
            f"{answer['user']} of tenant {answer['tenant']}, {answer['role']} (key "
            f"{answer['key_id']}) at {profile.url}"
        )
