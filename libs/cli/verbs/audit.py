"""`muster audit`: runs the verifier as a process of its own, on this machine's archive, and ends as it ends."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import click

from libs.cli.profile import Profile, read_profile
from libs.common.errors import Refused

# Where an embedded cluster keeps it, below its state directory.
ARCHIVE: Final = Path("services/audit")
# The check may hear what the archive may.
SEED: Final = Path("keys/audit.seed")


@click.group(short_help="Prove that nothing in the log was changed.")
def command() -> None:
    """Prove that nothing in the log was changed."""


@command.command()
def verify() -> int:
    """Check the chain of the archive against itself and the log.

    Exit code: 0 nothing was changed; 3 something was, and the output says where.
    """
    # -P: a `services` directory where this is called must not be taken for ours.
    line = [sys.executable, "-P", "-m", "services.audit", "verify"]
    code = subprocess.run(line, env={**_of_profile(read_profile()), **os.environ}, check=False).returncode
    return code if code >= 0 else 128 - code


def _of_profile(profile: Profile) -> dict[str, str]:
    """Where the archive and the log are; the caller's own MUSTER_* go before it."""
    state = Path(profile.state)
    if not profile.state and not {"MUSTER_STATE", "MUSTER_AUDIT_URL"} & set(os.environ):
        raise Refused("no archive is known here: set MUSTER_STATE to a state directory, or MUSTER_AUDIT_URL, or start a cluster: muster up")
    archive = state / ARCHIVE
    found = {
        "MUSTER_STATE": str(archive if archive.is_dir() else state),
        "MUSTER_NATS": profile.nats,
        "MUSTER_NKEY_SEED_FILE": str(state / SEED) if (state / SEED).is_file() else "",
    }
    return {name: value for name, value in found.items() if value}
