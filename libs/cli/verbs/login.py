"""`muster login`: the key is asked for without an echo, checked, and kept in the profile, which
only this user can read.
"""

import json
import sys

import click

from libs.cli.gateway import ask
from libs.cli.profile import Profile, kept_of, profile_path
from libs.common.errors import Refused

KEY_CHARS_MAX = 4_096


@click.command(short_help="Use a cluster from this machine: ask for a key, check it, keep it.")
@click.argument("url")
@click.option(
    "--replace",
    is_flag=True,
    help=(
        "Forget what is kept there of another cluster, or of the cluster that this machine starts."
    ),
)
def command(url: str, replace: bool) -> None:
    """Use a cluster from this machine: ask for a key, check it, keep it.

    The key is asked for, or read from a pipe; never given as an argument, where others could see
    it. What `muster up` has kept, or a login at another address, stays unless you say --replace:
    give each its own file by MUSTER_PROFILE.

    \b
    muster login https://gpus.example.org
    cat key | muster login http://10.0.0.5:8080
    MUSTER_PROFILE=~/.config/muster/lab.json muster login https://lab.example.org
    """
    from libs.embedded.identity import write_private

    address, path = url.rstrip("/"), profile_path()
    kept = kept_of(path)
    if kept is not None and not replace and (kept.state or kept.url != address):
        whose = (
            f"the administrator's key of the cluster in {kept.state}"
            if kept.state
            else f"a key for {kept.url}"
        )
        keep = (
            f"MUSTER_PROFILE=FILE muster login {address} (and MUSTER_PROFILE=FILE before what is "
            "asked of it)"
        )
        raise Refused(f"{path} holds {whose}: keep it with {keep}, or say --replace")
    key = (
        click.prompt("API key", hide_input=True)
        if sys.stdin.isatty()
        else sys.stdin.readline(KEY_CHARS_MAX)
    )
    text = key.strip()
    found = ask(Profile(address, text, "the command line", "", ""), "GET", "/v1/whoami")
    write_private(
        path, json.dumps({"gateway": address, "key": text, "user": found["user"]}, indent=1)
    )
    print(f"{found['user']} of tenant {found['tenant']}, {found['role']}; kept in {path}")
