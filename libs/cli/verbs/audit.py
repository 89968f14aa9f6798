"""`muster audit`: check and export the archive.

`head` asks the gateway. The other commands run `python -m services.audit` on this machine, where
the archive is, and end with its exit code.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import click

from libs.cli.gateway import ask
from libs.client.profile import Profile, read_profile
from libs.common.errors import Refused

# The archive of an embedded cluster, below its state directory.
ARCHIVE: Final = Path("services/audit")
# The key of the audit service: the check reads the same subjects.
SEED: Final = Path("keys/audit.seed")
SHAPE: Final = "cluster.json"


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

    Exit code: 0 if nothing was changed, 3 if something was. The output names the place.
    """
    return _call("verify", head=_absolute(head), key=key)


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
    return _call(
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
    return _call("migrate", *(["--yes"] if yes else []), to=to)


def _absolute(path: str | None) -> str | None:
    return str(Path(path).absolute()) if path else None


def _call(verb: str, *flags: str, **options: str | None) -> int:
    given = [part for name, value in options.items() if value for part in (f"--{name}", value)]
    # -P: Python must not import a `services` package from the current directory.
    line = [sys.executable, "-P", "-m", "services.audit", verb, *given, *flags]
    code = subprocess.run(
        line, env={**_of_profile(read_profile()), **os.environ}, check=False
    ).returncode
    return code if code >= 0 else 128 - code


def _of_profile(profile: Profile) -> dict[str, str]:
    """Return the variables that name the archive and the log.

    The caller's own MUSTER_* variables override them. Raises Refused if no archive is known.
    """
    state = Path(profile.state)
    if not profile.state and not {"MUSTER_STATE", "MUSTER_AUDIT_URL"} & set(os.environ):
        raise Refused(
            "no archive is known on this machine: set MUSTER_STATE to a state directory, set "
            "MUSTER_AUDIT_URL, or start a cluster with: muster up"
        )
    archive = state / ARCHIVE
    variables = {
        "MUSTER_STATE": str(archive if archive.is_dir() else state),
        "MUSTER_NATS": profile.nats,
        "MUSTER_NKEY_SEED_FILE": str(state / SEED) if (state / SEED).is_file() else "",
        "MUSTER_CLUSTER_ID": _cluster_id(state / SHAPE),
    }
    return {name: value for name, value in variables.items() if value}


def _cluster_id(path: Path) -> str:
    """Return the cluster id that `muster up` wrote, or an empty text without such a file."""
    try:
        return str(json.loads(path.read_bytes())["cluster_id"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""
