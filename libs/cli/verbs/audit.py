"""`muster audit`: runs the verifier as a process of its own, on this machine's archive, and ends as it ends."""

import os
import subprocess
import sys

import click

from libs.cli.profile import read_profile
from libs.common.errors import Refused


@click.group(short_help="Prove that nothing in the log was changed.")
def command() -> None:
    """Prove that nothing in the log was changed."""


@command.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def verify(arguments: tuple[str, ...]) -> int:
    """Check the chain of the archive against itself and the log."""
    profile = read_profile()
    environ = dict(os.environ)
    if profile.state:
        environ.setdefault("MUSTER_STATE", profile.state)
    if "MUSTER_STATE" not in environ and "MUSTER_AUDIT_URL" not in environ:
        raise Refused("no archive is known here: set MUSTER_STATE to a state directory, or MUSTER_AUDIT_URL, or start a cluster: muster up")
    # -P: a `services` directory where this is called must not be taken for ours.
    line = [sys.executable, "-P", "-m", "services.audit", "verify", *arguments]
    return _code(subprocess.run(line, env=environ, check=False).returncode)


def _code(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode
