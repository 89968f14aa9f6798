"""`muster login`: read a key without echo, check it, and save it in the user's private profile."""

import json
import sys

import click

from libs.cli.gateway import ask
from libs.client.profile import Profile, kept_of, profile_path
from libs.common.errors import Refused

KEY_CHARS_MAX = 4_096


@click.command(short_help="Log in to a cluster: read a key, check it, and save it.")
@click.argument("url")
@click.option(
    "--replace",
    is_flag=True,
    help=("Overwrite the profile, even if it holds a key for another cluster."),
)
def command(url: str, replace: bool) -> None:
    """Log in to a cluster: read a key, check it, and save it.

    The command reads the key from the terminal or from a pipe, never from an argument, which other
    users could see. It does not overwrite the profile of muster up or of another cluster without
    --replace. To keep several profiles, set MUSTER_PROFILE to a file for each cluster.

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
            f"MUSTER_PROFILE=FILE muster login {address} (and set MUSTER_PROFILE=FILE for "
            "commands to that cluster)"
        )
        raise Refused(f"{path} holds {whose}: keep it with {keep}, or overwrite it with --replace")
    key = (
        click.prompt("API key", hide_input=True)
        if sys.stdin.isatty()
        else sys.stdin.readline(KEY_CHARS_MAX)
    )
    text = key.strip()
    answer = ask(
        Profile(url=address, key=text, source="the command line", user="", state=""),
        "GET",
        "/v1/whoami",
    )
    write_private(
        path, json.dumps({"gateway": address, "key": text, "user": answer["user"]}, indent=1)
    )
    print(f"{answer['user']} of tenant {answer['tenant']}, {answer['role']}; saved in {path}")
