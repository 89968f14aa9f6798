"""`muster login`: the key is asked for without an echo, checked, and kept in the profile, which only this user can read."""

import json
import sys

import click

from libs.cli.gateway import ask
from libs.cli.profile import Profile, profile_path

KEY_CHARS_MAX = 4_096


@click.command(short_help="Use a cluster from this machine: ask for a key, check it, keep it.")
@click.argument("url")
def command(url: str) -> None:
    """Use a cluster from this machine: ask for a key, check it, keep it.

    The key is asked for, or read from a pipe; never given as an argument, where others could see it.

    \b
    muster login https://gpus.example.org
    cat key | muster login http://10.0.0.5:8080
    """
    from libs.embedded.identity import write_private

    key = click.prompt("API key", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline(KEY_CHARS_MAX)
    address, text = url.rstrip("/"), key.strip()
    found = ask(Profile(address, text, "the command line", "", ""), "GET", "/v1/whoami")
    path = profile_path()
    write_private(path, json.dumps({"gateway": address, "key": text, "user": found["user"]}, indent=1))
    print(f"{found['user']} of tenant {found['tenant']}, {found['role']}; kept in {path}")
