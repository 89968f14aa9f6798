"""`muster lock`: hold a lock of the tenant while a command runs."""

import shutil
import uuid

import click

from libs.cli.flags.durations import DURATION
from libs.cli.following.locked import Holding, run_held
from libs.cli.terminal.output import complain
from libs.client.profile import read_profile

NOT_FOUND = 127


@click.command(short_help="Hold a lock while a command runs.")
@click.argument("name")
@click.option(
    "--ttl",
    type=DURATION,
    default="30s",
    show_default=True,
    help="Time after which the lock is freed if this command or its machine fails (5s to 1h).",
)
@click.option(
    "--wait",
    type=DURATION,
    default="5m",
    show_default=True,
    help="Maximum time to wait for the lock; 0s fails at once if it is held.",
)
@click.argument("words", nargs=-1, metavar="-- COMMAND [ARGS]...")
def command(name: str, ttl: int, wait: int, words: tuple[str, ...]) -> int:
    """Hold a lock while a command runs.

    The command runs on this machine. The lock's name belongs to your tenant. At most one client
    holds a lock. Clients that wait get it in the order in which they asked. The command gets
    MUSTER_LOCK_TOKEN, a number that grows with every holder: pass it to whatever the lock protects,
    so that it can refuse an earlier holder.

    \b
    muster lock deploy --ttl 30s --wait 5m -- ./deploy.sh
    muster locks                                            # who holds what

    The lock is renewed while the command runs. If renewals fail, the command and all processes that
    it started get SIGTERM, then SIGKILL, before the lock's time has passed.

    Exit code: the command's own, 128 + N if signal N ended it, 1 if the lock was not free in time,
    124 if the lock was lost, 127 if the command does not exist.
    """
    if not words:
        raise click.UsageError(
            f"no command: give one after --, for example muster lock {name} -- make"
        )
    if shutil.which(words[0]) is None:
        complain(f"command {words[0]!r} does not exist or cannot be run: check its path")
        return NOT_FOUND
    holding = Holding(read_profile(), name, holder=uuid.uuid4().hex, ttl_s=ttl)
    return run_held(holding, words, wait)
