"""`muster audit`: a process of its own, beside the archive on this machine, that ends as it ends;
`head` asks the gateway.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import click

from libs.cli.gateway import ask
from libs.cli.profile import Profile, read_profile
from libs.common.errors import Refused

# Where an embedded cluster keeps it, below its state directory.
ARCHIVE: Final = Path("services/audit")
# The check may hear what the archive may.
SEED: Final = Path("keys/audit.seed")
SHAPE: Final = "cluster.json"


@click.group(short_help="Prove that nothing in the log was changed; hand it on.")
def command() -> None:
    """Prove that nothing in the log was changed; hand it on."""


@command.command()
@click.option(
    "--head",
    metavar="FILE",
    help="Also hold the archive to heads that were kept: lines of `muster audit head`.",
)
@click.option("--key", metavar="KEY", help="Only heads signed by this public key count.")
def verify(head: str | None, key: str | None) -> int:
    """Check the chain of the archive against itself, the log, and heads that were kept elsewhere.

    A chain that was cut off at its end, or rewritten with all its hashes, is whole in itself: a
    head that someone kept shows it.

    Exit code: 0 nothing was changed; 3 something was, and the output says where.
    """
    return _call("verify", head=_absolute(head), key=key)


@command.command()
def head() -> None:
    """Print the newest signed head of the chain: keep it somewhere else.

    \b
    muster audit head >> heads.ndjson
    muster audit verify --head heads.ndjson --key UABC...
    """
    print(json.dumps(ask(read_profile(), "GET", "/v1/audit/head"), separators=(",", ":")))


@command.command()
@click.option(
    "--since", metavar="WHEN", help="From a sequence, an RFC 3339 instant, or so long ago (12h) on."
)
@click.option("--until", metavar="WHEN", help="Up to then; sequences and instants belong to it.")
@click.option(
    "--after",
    metavar="ID",
    help="Only behind the event with this id: goes on where an earlier export ended.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["ndjson", "csv"]),
    default="ndjson",
    help="CloudEvents 1.0, a line each; or rows.",
)
@click.option("--output", metavar="FILE", help="A new file; without it, stdout.")
def export(
    since: str | None, until: str | None, after: str | None, form: str, output: str | None
) -> int:
    """Write every event of the archive, in order.

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
    help="A revision of the schema; head is the newest, base none at all.",
)
@click.option("--yes", is_flag=True, help="For base: the archive is really to be dropped.")
def migrate(to: str, yes: bool) -> int:
    """Take the archive's schema up or down, in one transaction.

    The service takes it up at its start: stop audit before it is taken down.
    """
    return _call("migrate", *(["--yes"] if yes else []), to=to)


def _absolute(path: str | None) -> str | None:
    return str(Path(path).absolute()) if path else None


def _call(verb: str, *flags: str, **options: str | None) -> int:
    given = [part for name, value in options.items() if value for part in (f"--{name}", value)]
    # -P: a `services` directory where this is called must not be taken for ours.
    line = [sys.executable, "-P", "-m", "services.audit", verb, *given, *flags]
    code = subprocess.run(
        line, env={**_of_profile(read_profile()), **os.environ}, check=False
    ).returncode
    return code if code >= 0 else 128 - code


def _of_profile(profile: Profile) -> dict[str, str]:
    """Where the archive and the log are; the caller's own MUSTER_* go before it."""
    state = Path(profile.state)
    if not profile.state and not {"MUSTER_STATE", "MUSTER_AUDIT_URL"} & set(os.environ):
        raise Refused(
            "no archive is known here: set MUSTER_STATE to a state directory, or "
            "MUSTER_AUDIT_URL, or start a cluster: muster up"
        )
    archive = state / ARCHIVE
    found = {
        "MUSTER_STATE": str(archive if archive.is_dir() else state),
        "MUSTER_NATS": profile.nats,
        "MUSTER_NKEY_SEED_FILE": str(state / SEED) if (state / SEED).is_file() else "",
        "MUSTER_CLUSTER_ID": _cluster_id(state / SHAPE),
    }
    return {name: value for name, value in found.items() if value}


def _cluster_id(path: Path) -> str:
    """As `muster up` wrote it down; empty where there is no such file."""
    try:
        return str(json.loads(path.read_bytes())["cluster_id"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""
