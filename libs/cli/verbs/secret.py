"""`muster secret set|list|rm`."""

import json
import re
import sys
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click

from libs.cli.gateway import ask
from libs.cli.terminal.output import listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile
from libs.common.container_spec import registry_secret

REGISTRY: Final = re.compile(r"[a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?")
COLUMNS: Final = (Column("SECRET"), Column("VERSION", right=True), Column("SET"), Column("USER"))


@click.group(short_help="Store, list and remove secrets for jobs.")
def command() -> None:
    """Store, list and remove secrets for jobs.

    \b
    muster secret set hf-token < token.txt
    muster run --secret hf-token=HF_TOKEN -- python train.py
    muster secret set --registry registry.example --username ann < token.txt
    """


@command.command("set")
@click.argument("name", required=False)
@click.option(
    "--registry",
    metavar="HOST[:PORT]",
    help=(
        "Store the password of an image registry, for example docker.io. Nodes use it for the "
        "pulls of your tenant's images."
    ),
)
@click.option("--username", metavar="USER", help="User of the registry (with --registry).")
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read the value from this file (default: standard input, or a prompt).",
)
def set_secret(
    name: str | None, registry: str | None, username: str | None, from_file: Path | None
) -> None:
    """Store a secret of your tenant.

    The command reads the value from a file, from standard input or from a prompt, never from an
    argument, which other users could see. It removes one newline from the end of the value.
    """
    if bool(name) == bool(registry) or bool(registry) != bool(username):
        raise click.UsageError("give either NAME, or --registry HOST with --username USER")
    stored = registry_secret(_host(registry)) if registry else str(name)
    value = _value(from_file)
    if registry:
        value = json.dumps({"username": username, "password": value})
    made = ask(read_profile(), "PUT", _path(stored), body={"value": value})
    print(f"secret {stored}, version {made['version']}")


@command.command("list")
@listed
def list_secrets(form: str, no_headers: bool) -> None:
    """List the secrets of your tenant, without their values."""
    secrets = ask(read_profile(), "GET", "/v1/secrets")["secrets"]
    if not print_value(secrets, form):
        rows = [
            [each["name"], str(each["version"]), each["set_at"] or "-", each["user"] or "-"]
            for each in secrets
        ]
        print_table(COLUMNS, rows, not no_headers, form == "wide")


@command.command("rm")
@click.argument("name")
def remove_secret(name: str) -> None:
    """Remove a secret. Jobs that start later do not get it."""
    ask(read_profile(), "DELETE", _path(name))
    print(f"secret {name} is removed")


def _host(text: str) -> str:
    """Return a registry in the form of images' names. Raises UsageError."""
    if not REGISTRY.fullmatch(text):
        raise click.UsageError(
            f"--registry {text!r}: give a host as images name it, for example registry.example "
            "or registry.example:5000"
        )
    return text


def _value(from_file: Path | None) -> str:
    if from_file is not None:
        return from_file.read_text().removesuffix("\n")
    if sys.stdin.isatty():
        return str(click.prompt("value", hide_input=True))
    return sys.stdin.read().removesuffix("\n")


def _path(name: str) -> str:
    return f"/v1/secrets/{quote(name, safe='')}"
