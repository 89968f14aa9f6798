"""`muster notify add|list|test|remove`."""

import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from libs.cli.gateway import ask
from libs.cli.terminal.output import listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile
from libs.common.errors import Refused

COLUMNS: Final = (
    Column("NAME"),
    Column("TENANT"),
    Column("USER"),
    Column("FORM"),
    Column("ADDRESS"),
    Column("FACTS"),
    Column("SENT", right=True),
    Column("LAST"),
    Column("FAILURES", right=True),
    Column("ERROR"),
)


@click.group(short_help="Send messages about jobs and nodes to webhooks, Slack and mail.")
def command() -> None:
    """Send messages about jobs and nodes to webhooks, Slack and mail.

    \b
    muster notify add done --webhook-file url.txt --own
    muster notify add team --slack-file url.txt --on job.closed --failures
    muster notify add night --mail ann@example.org --on job.closed --on node.lost
    muster notify test done
    """


@command.command("add")
@click.argument("name")
@click.option(
    "--webhook-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Read the URL of a webhook from this file (-: standard input). It may hold a secret.",
)
@click.option(
    "--slack-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Read the URL of a Slack webhook from this file (-: standard input).",
)
@click.option("--mail", metavar="ADDRESS", help="Send mails to this address.")
@click.option(
    "--on",
    "kinds",
    metavar="KIND",
    multiple=True,
    help="Send facts of this kind: job.closed (default), job.*, node.lost ... (repeatable).",
)
@click.option("--own", is_flag=True, help="Send only facts about your own jobs.")
@click.option("--failures", is_flag=True, help="Send nothing about jobs that completed.")
@click.option(
    "--model",
    "models",
    metavar="NAME",
    multiple=True,
    help="Send only facts about this model (repeatable).",
)
@click.option(
    "--node",
    "nodes",
    metavar="NAME",
    multiple=True,
    help="Send only facts about this node (operators; repeatable).",
)
@click.option(
    "--tenant",
    "tenants",
    metavar="NAME",
    multiple=True,
    help="Send facts of this tenant instead of your own; * for all tenants (operators).",
)
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Sign webhooks with the key in this file (default: a new key, which is printed once).",
)
def add(
    name: str,
    webhook_file: Path | None,
    slack_file: Path | None,
    mail: str | None,
    key_file: Path | None,
    **filters: Any,  # noqa: ANN401  the options of the body
) -> None:
    """Add a notification, or change it.

    If you change a notification without giving an address, it keeps its address. The command reads
    URLs from files, because other users could see an argument.
    """
    given = {
        "webhook": _read(webhook_file),
        "slack": _read(slack_file),
        "mail": mail or "",
        "key": _read(key_file),
    }
    body = {field: value for field, value in {**given, **filters}.items() if value}
    made = ask(read_profile(), "PUT", _path(name), body=body)
    print(f"notification {name}: {made['form']} {made['address']}")
    if made.get("key"):
        print(f"key {made['key']}  (it is not shown again; check webhook-signature with it)")


@command.command("list")
@listed
def list_notifications(form: str, no_headers: bool) -> None:
    """List notifications, with the numbers of sent and failed messages."""
    found = ask(read_profile(), "GET", "/v1/notifications")["notifications"]
    if not print_value(found, form):
        print_table(COLUMNS, [_row(each) for each in found], not no_headers, form == "wide")


@command.command("test")
@click.argument("name")
@click.option("--tenant", metavar="NAME", help="Tenant of the notification (operators).")
def test(name: str, tenant: str | None) -> None:
    """Send a test message now and print the result."""
    result = ask(read_profile(), "POST", f"{_path(name)}/test", _query(tenant), body={})
    if not result["accepted"]:
        raise Refused(f"notification {name} was not delivered: {result['detail']}")
    print(f"notification {name} was delivered")


@command.command("remove")
@click.argument("name")
@click.option("--tenant", metavar="NAME", help="Tenant of the notification (operators).")
def remove(name: str, tenant: str | None) -> None:
    """Remove a notification. Messages that wait for it are not sent."""
    ask(read_profile(), "DELETE", _path(name), _query(tenant))
    print(f"notification {name} is removed")


def _row(each: dict[str, Any]) -> list[str]:
    return [
        each["name"],
        each["tenant"],
        each["user"] or "-",
        each["form"],
        each["address"],
        ",".join(each["kinds"]),
        str(each["sent"]),
        each["sent_at"] or "-",
        str(each["failures"]),
        each["error"] or "-",
    ]


def _read(path: Path | None) -> str:
    if path is None:
        return ""
    text = sys.stdin.read() if str(path) == "-" else path.read_text()
    return text.strip()


def _query(tenant: str | None) -> dict[str, str]:
    return {"tenant": tenant} if tenant else {}


def _path(name: str) -> str:
    return f"/v1/notifications/{quote(name, safe='')}"
