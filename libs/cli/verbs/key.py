"""`muster key create|list|limit|rotate|revoke|reset`.

A new key goes to stdout alone, so that it can be piped; the note about it goes to stderr.
"""

from pathlib import Path
from typing import Final
from urllib.parse import quote

import click

from libs.cli.embedded_verbs import state_of
from libs.cli.flags.durations import age
from libs.cli.flags.limit_flags import given, in_words, limit_flags
from libs.cli.gateway import Json, ask, ask_all
from libs.cli.jobs import utc_now
from libs.cli.terminal.output import complain, listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile
from libs.common.errors import Refused

ROLES: Final = ("viewer", "member", "operator", "admin")
COLUMNS: Final = (
    Column("KEY"),
    Column("TENANT"),
    Column("USER"),
    Column("ROLE"),
    Column("NAME", flexible=True),
    Column("CREATED", right=True),
    Column("EXPIRES"),
    Column("OLD SECRET UNTIL"),
    Column("LIMITS", flexible=True),
)


@click.group(short_help="Create, list, limit, rotate and revoke API keys.")
def command() -> None:
    """Create, list, limit, rotate and revoke API keys.

    \b
    muster key create --user ada --tenant physics --role member --expires 90d
    muster key limit KEY --requests-per-minute 60 --tokens-per-minute 20000
    muster key rotate KEY --grace 2h
    """


@command.command()
@click.option(
    "--user",
    required=True,
    metavar="USER",
    help="User that the key stands for: a person or a service.",
)
@click.option("--tenant", default="", metavar="TENANT", help="Tenant of the key (default: yours).")
@click.option(
    "--role", type=click.Choice(ROLES), default="member", help="Role of the key (default: member)."
)
@click.option(
    "--name",
    default="",
    metavar="TEXT",
    help="Description, for example the machine where the key is kept.",
)
@click.option(
    "--expires",
    metavar="DURATION",
    help="Lifetime of the key, for example 90d or 12h (default: unlimited).",
)
@limit_flags
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    help="Output format.",
)
def create(
    user: str,
    tenant: str,
    role: str,
    name: str,
    expires: str | None,
    form: str,
    **limits: int | None,
) -> None:
    """Create a key and print it. The key is not shown again."""
    body = {"user": user, "tenant": tenant, "role": role, "name": name, **given(**limits)}
    ends = {} if expires is None else {"expires_in": expires}
    _show(ask(read_profile(), "POST", "/v1/keys", body={**body, **ends}), form)


@command.command("list")
@click.option("--tenant", metavar="TENANT", help="Show only keys of this tenant.")
@click.option("--user", metavar="USER", help="Show only keys of this user.")
@listed
def list_keys(tenant: str | None, user: str | None, form: str, no_headers: bool) -> None:
    """List keys without their secrets."""
    keys = ask_all(read_profile(), "/v1/keys", "keys", {"tenant": tenant, "user": user})
    if not print_value(keys, form):
        print_table(COLUMNS, [_row(key) for key in keys], not no_headers, form == "wide")


@command.command()
@click.argument("key")
@limit_flags
def limit(key: str, **limits: int | None) -> None:
    """Limit the requests to models that are sent with a key.

    The command removes limits that you leave out.

    \b
    muster key limit KEY --requests-per-minute 60
    muster key limit KEY                             # no limits
    """
    made = ask(read_profile(), "PUT", f"{_path(key)}/limits", body=given(**limits))
    print(f"key {made['id']}: {in_words(made) or 'no limits'}")


@command.command()
@click.argument("key")
@click.option(
    "--grace",
    metavar="DURATION",
    help="Time for which the old secret stays valid (default: 1d; 0 ends it at once).",
)
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    help="Output format.",
)
def rotate(key: str, grace: str | None, form: str) -> None:
    """Replace the secret of a key and print the new one. It is not shown again."""
    _show(
        ask(
            read_profile(),
            "POST",
            f"{_path(key)}/rotate",
            body={} if grace is None else {"grace": grace},
        ),
        form,
    )


@command.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
def revoke(keys: tuple[str, ...]) -> None:
    """Revoke keys at once."""
    profile = read_profile()
    for key in keys:
        ask(profile, "DELETE", _path(key))
        print(f"key {key} is revoked")


@command.command()
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="State directory (default: ./.muster, else the last cluster started here).",
)
@click.option("--only", is_flag=True, help="Revoke all other keys of this host.")
def reset(state: Path | None, only: bool) -> None:
    """Replace a lost administrator key.

    Run it on the cluster's own host. The command writes the key to the profile, and its hash to the
    state directory, so only the owner of the cluster can run it. The gateway accepts the key within
    seconds.
    """
    from libs.embedded import identity, profile, shape

    directory = state_of(state).resolve()
    cluster = shape.load(directory)
    if cluster is None:
        raise Refused(f"{directory} holds no cluster: give the state directory with --state DIR")
    path = profile.write(directory, cluster, identity.new_api_key(directory / "keys", only))
    print(
        f"wrote a new administrator key to {path}"
        + ("; all other keys of this host are revoked" if only else "")
    )


def _show(made: Json, form: str) -> None:
    if print_value(made, form):
        return
    print(made["key"])
    until = f", until {made['expires_at']}" if made.get("expires_at") else ""
    complain(
        f"key {made['id']}: {made['role']} {made['user']} of tenant {made['tenant']}{until}; "
        "it is not shown again"
    )


def _path(key: str) -> str:
    return f"/v1/keys/{quote(key, safe='')}"


def _row(key: Json) -> list[str]:
    expires = "expired" if key["expired"] else key["expires_at"] or "never"
    created = age(key["created_at"], utc_now())
    return [
        key["id"],
        key["tenant"],
        key["user"],
        key["role"],
        key["name"] or "-",
        created,
        expires,
        key["old_until"] or "-",
        in_words(key) or "-",
    ]
