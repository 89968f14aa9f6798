"""`muster dashboard`: a one-time link to the dashboard."""

import webbrowser

import click

from libs.cli.gateway import ask
from libs.client.profile import read_profile


@click.command(short_help="Print a one-time link that signs a browser in to the dashboard.")
@click.option(
    "--open/--print",
    "opens",
    default=False,
    help="Open the link in the browser of this machine, or only print it (default: --print).",
)
def command(opens: bool) -> None:
    """Print a one-time link that signs a browser in to the dashboard.

    The link works once, within a minute. The browser then has the user, tenant and role of the key
    in use, without seeing the key.

    \b
    muster dashboard
    muster dashboard --open
    """
    profile = read_profile()
    link = ask(profile, "POST", "/v1/session/links")
    url = f"{profile.url}{link['path']}"
    if opens and webbrowser.open(url):
        print(f"opened {profile.url} in the browser")
    else:
        print(url)
