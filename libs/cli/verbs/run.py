"""`muster run`: submit a job, follow its output, forward input, and exit with its exit code.

Exit code: the job's own; 128 + N if signal N ended it; 1 if it ended without a process (cancelled
before it ran, rejected, lost).
"""

import click

from libs.cli.flags.jobflags import FlagValues, job_body, job_flags
from libs.cli.following.running import run_to_end
from libs.cli.following.stdin_forwarding import worth_forwarding
from libs.cli.formats.uploading import with_upload
from libs.client.profile import read_profile


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
    wanted = {**job_body(words, profile.user, values), "stdin": forwarded}
    return run_to_end(profile, with_upload(profile, wanted), rank)
