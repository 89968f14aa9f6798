"""salloc: hold GPUs while a command or a shell runs on this machine."""

import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Final

from libs.cli.formats.sbatch_flags import SHORT
from libs.cli.gateway import ask
from libs.cli.slurm.holding import NAMES as OF_ALLOCATIONS
from libs.cli.slurm.holding import environment, held, request_of
from libs.cli.slurm.job_requests import ALSO, IGNORED, options, refused
from libs.cli.slurm.options import NONE, Option, Table, parse
from libs.cli.slurm.requests import say, shown_id
from libs.client.profile import read_profile
from libs.common.errors import Refused

PROGRAM: Final = "salloc"
NAMES: Final = (*OF_ALLOCATIONS, *ALSO, *IGNORED, "quiet")
OTHERS: Final = {
    "dependency": "use sbatch, or muster wait JOB before salloc",
    "array": "use sbatch",
    "hold": "use sbatch",
    "bell": "Muster rings no bell",
    "immediate": "use muster whatif, which says whether the request would start now",
}
TABLE: Final = Table(
    PROGRAM,
    (*options(NAMES), Option("no-shell", "", NONE)),
    refused(NAMES) | OTHERS,
    SHORT,
    stops=True,
)


def main(words: Sequence[str]) -> int:
    given = parse(TABLE, words)
    profile = read_profile()
    body = request_of(given, PROGRAM, ALSO, profile)
    if given.has("no-shell"):
        if given.rest:
            raise Refused("--no-shell and a command: give one of them")
        shown = ask(profile, "POST", "/v1/allocations", body=body)
        say(PROGRAM, f"Requested job allocation {shown_id(str(shown['id']))}")
        return 0
    command = given.rest or [os.environ.get("SHELL") or "/bin/sh"]
    with held(profile, body, PROGRAM) as shown:
        try:
            return _run(command, environment(shown))
        finally:
            say(PROGRAM, f"Relinquishing job allocation {shown_id(str(shown['id']))}")


def _run(command: Sequence[str], variables: dict[str, str]) -> int:
    """Run the command here and return its exit code; Ctrl-C is the command's."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = subprocess.run(
            command,
            env={**os.environ, **variables},
            check=False,
            preexec_fn=_own_interrupt,
        ).returncode
    except OSError as error:
        raise Refused(f"cannot run {command[0]}: {error.strerror}") from error
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code


def _own_interrupt() -> None:
    """Let the command handle Ctrl-C itself; it inherited that this program ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
