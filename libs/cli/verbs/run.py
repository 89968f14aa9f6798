"""`muster run`: submit, follow, forward, and end as the job ends.

Exit code: the job's own; 128 + the signal that ended it; 1 when it ended without one (cancelled
before it ran, rejected, lost).
"""

import signal
import sys
from typing import Final

import click

from libs.cli.flags.jobflags import Asked, asked_job, job_flags
from libs.cli.following.attach import Listener, attach
from libs.cli.following.stdin_forwarding import Forwarder, worth_forwarding
from libs.cli.following.stopping import Stopping
from libs.cli.formats.uploading import brought
from libs.cli.gateway import ask
from libs.cli.jobs import ENDED, exit_code_of
from libs.cli.profile import read_profile
from libs.cli.terminal.ending import end_line
from libs.cli.terminal.output import complain
from libs.cli.terminal.waiting_note import WaitingNote

ON_NODE: Final = ("running", "releasing", *ENDED)
PIPE_CLOSED: Final = 141


@click.command(
    short_help="Run a command on GPUs and stay with it until it ends.",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, required=True, metavar="[--] COMMAND [ARGS]...")
@click.option(
    "--rank",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Whose output, of a job on several nodes.",
)
@click.option("--no-stdin", is_flag=True, help="Do not forward standard input.")
@job_flags
def command(words: tuple[str, ...], rank: int, no_stdin: bool, **asked: object) -> int:
    """Run a command on GPUs and stay with it until it ends.

    Output, input and the exit code are the command's own. Ctrl-C asks it to stop (SIGINT); a second
    one kills it.

    \b
    muster run --gpus 2 -- python train.py
    muster run -N 2 -g 8 -t 4h -- torchrun train.py
    muster run --fraction 0.25 -- nvidia-smi
    muster run --upload . -- python train.py
    cat data.txt | muster run -- wc -l

    Exit code: the command's; 128 + the signal that ended it; 1 when it ended without one.
    """
    return _run(words, rank, not no_stdin and worth_forwarding(), asked)


def _run(words: tuple[str, ...], rank: int, forwarded: bool, asked: Asked) -> int:
    profile = read_profile()
    wanted = brought(profile, {**asked_job(words, profile.user, asked), "stdin": forwarded})
    stopping = Stopping(profile)
    job_id = str(ask(profile, "POST", "/v1/jobs", body=wanted)["id"])
    stopping.watch(job_id)
    note = WaitingNote(profile, job_id)
    forwarder = Forwarder(profile, job_id)

    def heard(state: str, attempt: int) -> None:
        if state in ON_NODE:
            note.started()
        if state == "running" and forwarded:
            forwarder.start(attempt)

    output = _Output(stopping)
    last = attach(profile, job_id, rank, Listener(output.write, heard))
    note.started()
    forwarder.stop()
    if output.closed:
        return PIPE_CLOSED
    if said := end_line(profile, job_id, last):
        complain(said)
    return exit_code_of(last)


class _Output:
    """Writes what comes, at once.

    When nobody reads it any more, the job is told as a pipe would tell it: with SIGPIPE.
    """

    def __init__(self, stopping: Stopping) -> None:
        self.closed = False
        self._stopping = stopping

    def write(self, stream: str, data: bytes) -> None:
        if self.closed:
            return
        file = sys.stderr.buffer if stream == "stderr" else sys.stdout.buffer
        try:
            file.write(data)
            file.flush()
        except BrokenPipeError:
            self.closed = True
            self._stopping.stop_with(signal.SIGPIPE)
