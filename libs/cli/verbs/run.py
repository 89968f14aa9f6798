"""`muster run`: submit a job, follow its output, forward input, and exit with its exit code.

Exit code: the job's own; 128 + N if signal N ended it; 1 if it ended without a process (cancelled
before it ran, rejected, lost).
"""

import signal
import sys
from typing import Final

import click

from libs.cli.flags.jobflags import FlagValues, job_body, job_flags
from libs.cli.following.attach import Listener, attach
from libs.cli.following.stdin_forwarding import Forwarder, worth_forwarding
from libs.cli.following.stopping import Stopping
from libs.cli.formats.uploading import with_upload
from libs.cli.gateway import ask
from libs.cli.jobs import ENDED, exit_code_of
from libs.cli.profile import read_profile
from libs.cli.terminal.ending import end_line
from libs.cli.terminal.output import complain
from libs.cli.terminal.waiting_note import WaitingNote

ON_NODE: Final = ("running", "releasing", *ENDED)
PIPE_CLOSED: Final = 141


@click.command(
    short_help="Run a command on GPUs and wait for it.",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, metavar="[--] COMMAND [ARGS]...")
@click.option(
    "--rank",
    type=click.IntRange(0),
    metavar="N",
    default=0,
    show_default=True,
    help="Show the output of this rank (multi-node jobs).",
)
@click.option("--no-stdin", is_flag=True, help="Do not forward standard input.")
@job_flags
def command(words: tuple[str, ...], rank: int, no_stdin: bool, **values: object) -> int:
    """Run a command on GPUs and wait for it.

    The command's output, input and exit code are those of the job. Ctrl-C asks the job to stop
    (SIGINT); a second Ctrl-C kills it.

    \b
    muster run --gpus 2 -- python train.py
    muster run -N 2 -g 8 -t 4h -- torchrun train.py
    muster run --fraction 0.25 -- nvidia-smi
    muster run --upload . -- python train.py
    muster run --image python:3.11-slim --cache huggingface -- python train.py
    cat data.txt | muster run -- wc -l

    Exit code: the job's own, 128 + N if signal N ended it, or 1 if it never ran.
    """
    if not words and not values["image"]:
        raise click.UsageError("no command: give one after --, or an image that has one (--image)")
    return _run(words, rank, not no_stdin and worth_forwarding(), values)


def _run(words: tuple[str, ...], rank: int, forwarded: bool, values: FlagValues) -> int:
    profile = read_profile()
    wanted = with_upload(profile, {**job_body(words, profile.user, values), "stdin": forwarded})
    stopping = Stopping(profile)
    job_id = str(ask(profile, "POST", "/v1/jobs", body=wanted)["id"])
    stopping.watch(job_id)
    note = WaitingNote(profile, job_id)
    forwarder = Forwarder(profile, job_id)

    def on_state(state: str, attempt: int) -> None:
        if state in ON_NODE:
            note.started()
        if state == "running" and forwarded:
            forwarder.start(attempt)

    output = _Output(stopping)
    last = attach(profile, job_id, rank, Listener(output.write, on_state))
    note.started()
    forwarder.stop()
    if output.closed:
        return PIPE_CLOSED
    if line := end_line(profile, job_id, last):
        complain(line)
    return exit_code_of(last)


class _Output:
    """Writes the job's output at once.

    When the reader of this command's output is gone, the job gets SIGPIPE, as in a shell pipe.
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
