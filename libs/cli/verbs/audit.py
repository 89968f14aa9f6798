"""`muster audit`: check and export the archive.

`head` asks the gateway. The other commands run `python -m services.audit` on this machine, where
the archive is, and end with its exit code.
"""

import json
from pathlib import Path

import click

from libs.cli.archive_process import call
from libs.cli.gateway import ask
from libs.client.profile import read_profile


@click.group(short_help="Verify the log against tampering, and export it.")
def command() -> None:
    """Verify the log against tampering, and export it."""


@command.command()
@click.option(
    "--head",
    metavar="FILE",
    help="Also check against saved heads: a file with lines of muster audit head.",
)
@click.option("--key", metavar="KEY", help="Accept only heads that this public key signed.")
def verify(head: str | None, key: str | None) -> int:
    """Check that the archive was not changed.

    The command checks the hash chain, and compares it with the log and with saved heads. A chain
    that was cut at its end, or rewritten together with its hashes, is consistent in itself. Only a
    head that you saved elsewhere (--head) shows such a change.

    Exit code: 0 if nothing was changed, 3 if something was, 1 if the archive is behind the log or
    was not compared to its end. The output says where.
    """
    return call("verify", head=_absolute(head), key=key)


@command.command()
def head() -> None:
    """Print the newest signed head of the chain. Save it on another machine.

    \b
    muster audit head >> heads.ndjson
    muster audit verify --head heads.ndjson --key UABC...
    """
    print(json.dumps(ask(read_profile(), "GET", "/v1/audit/head"), separators=(",", ":")))


@command.command()
@click.option(
    "--since",
    metavar="WHEN",
    help="Start at a sequence number or a time: 12h (ago), or 2026-12-24T18:00:00Z.",
)
@click.option(
    "--until",
    metavar="WHEN",
    help="End at a sequence number (inclusive) or a time, in the same forms.",
)
@click.option(
    "--after",
    metavar="ID",
    help="Start after the event with this id, to continue an earlier export.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["ndjson", "csv"]),
    default="ndjson",
    help="CloudEvents 1.0, one per line (ndjson), or rows (csv).",
)
@click.option("--output", metavar="FILE", help="Write to this new file (default: standard output).")
def export(
    since: str | None, until: str | None, after: str | None, form: str, output: str | None
) -> int:
    """Write the events of the archive, in order.

    \b
    muster audit export --since 7d --format csv --output week.csv
    muster audit export --since 120000 | jq .type
    """
    return call(
        "export", since=since, until=until, after=after, format=form, output=_absolute(output)
    )


@command.command()
@click.option(
    "--to",
    metavar="REV",
    default="head",
    help="Schema revision: head is the newest, base removes the schema.",
)
@click.option("--yes", is_flag=True, help="Confirm --to base, which drops the archive.")
def migrate(to: str, yes: bool) -> int:
    """Upgrade or downgrade the schema of the archive.

    The command uses one transaction, so it changes all or nothing. The audit service upgrades the
    schema when it starts. Stop it before a downgrade.
    """
    return call("migrate", *(["--yes"] if yes else []), to=to)


def _absolute(path: str | None) -> str | None:
    return str(Path(path).absolute()) if path else None
