"""`muster login`: read a key without echo, check it, and save it in the user's private profile."""

import json
import sys
import time
from pathlib import Path

import click

from libs.cli.faults import Cut, Declined, Unreachable
from libs.cli.gateway import ask
from libs.client.profile import Profile, kept_of, profile_path
from libs.common.errors import Refused

KEY_CHARS_MAX = 4_096
# The identity provider wants to be asked less often (RFC 8628, section 3.5).
SLOWER_S = 5
AWAY = (429, 502, 503, 504)


@click.command(short_help="Log in to a cluster: read a key, check it, and save it.")
@click.argument("url")
@click.option(
    "--replace",
    is_flag=True,
    help=("Overwrite the profile, even if it holds a key for another cluster."),
)
@click.option(
    "--sso",
    is_flag=True,
    help=(
        "Sign in at the cluster's identity provider, in a browser on any machine, instead of with "
        "a key."
    ),
)
def command(url: str, replace: bool, sso: bool) -> None:
    """Log in to a cluster: read a key, check it, and save it.

    The command reads the key from the terminal or from a pipe, never from an argument, which other
    users could see. It does not overwrite the profile of muster up or of another cluster without
    --replace. To keep several profiles, set MUSTER_PROFILE to a file for each cluster.

    \b
    muster login https://gpus.example.org
    muster login https://gpus.example.org --sso
    cat key | muster login http://10.0.0.5:8080
    MUSTER_PROFILE=~/.config/muster/lab.json muster login https://lab.example.org
    """
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
    profile = Profile(url=address, key="", source="the command line", user="", state="")
    key = _signed_on(profile) if sso else _given_key()
    _save(profile._replace(key=key), path)


def _given_key() -> str:
    """Read a key from the terminal or from a pipe."""
    text = (
        click.prompt("API key", hide_input=True)
        if sys.stdin.isatty()
        else sys.stdin.readline(KEY_CHARS_MAX)
    )
    return str(text).strip()


def _signed_on(profile: Profile) -> str:
    """Let the user sign in at the identity provider, and return the token of the session.

    Raises Refused if that does not happen in time.
    """
    begun = ask(profile, "POST", "/v1/session/device")
    print(f"Open {begun['verification_uri']} and enter the code {begun['user_code']}")
    if begun["verification_uri_complete"] != begun["verification_uri"]:
        print(f"or open {begun['verification_uri_complete']}", flush=True)
    until, pause_s = time.monotonic() + begun["expires_s"], begun["interval_s"]
    body = {"device": begun["device"]}
    while time.monotonic() < until:
        time.sleep(pause_s)
        try:
            answer = ask(profile, "POST", "/v1/session/device/token", body=body)
        except (Declined, Unreachable, Cut) as error:
            if isinstance(error, Declined) and error.status not in AWAY:
                raise
            continue  # a gateway that restarts
        if answer["token"]:
            return str(answer["token"])
        if answer["interval_s"]:
            pause_s = max(pause_s + SLOWER_S, answer["interval_s"])
    raise Refused(
        f"the code {begun['user_code']} was not entered in time: run muster login {profile.url} "
        "--sso again"
    )


def _save(profile: Profile, path: Path) -> None:
    """Check the key and save it."""
    from libs.embedded.identity import write_private

    answer = ask(profile, "GET", "/v1/whoami")
    content = {"gateway": profile.url, "key": profile.key, "user": answer["user"]}
    write_private(path, json.dumps(content, indent=1))
    print(f"{answer['user']} of tenant {answer['tenant']}, {answer['role']}; saved in {path}")
