"""`muster logs`: print the output of a job, each stream to the same stream here."""

import sys
from typing import Any, Final

import click

from libs.cli.following.attach import Listener, attach
from libs.cli.gateway import ask, job_path, opened
from libs.cli.terminal.output import complain
from libs.cli.terminal.tail import OFFSET_HEADER, SOURCE_HEADER, tail_offset
from libs.client.profile import Profile, read_profile

STREAMS: Final = ("stdout", "stderr")


@click.command(short_help="Print the output of a job.")
@click.argument("ref", metavar="JOB")
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the job ends.")
@click.option(
    "--stream", type=click.Choice(STREAMS), help="Print only this stream (default: both)."
)
@click.option("--stderr", is_flag=True, help="Same as --stream stderr.")
@click.option(
    "--rank",
    type=click.IntRange(0),
    metavar="N",
    default=0,
    show_default=True,
    help="Show the output of this rank (multi-node jobs).",
)
@click.option(
    "--attempt",
    type=click.IntRange(1),
    metavar="N",
    help="Show the output of an earlier attempt (default: the current one).",
)
@click.option(
    "-n",
    "--tail",
    type=click.IntRange(0),
    metavar="N",
    help="Start with the last N lines of each stream.",
)
def command(
    ref: str,
    follow: bool,
    stream: str | None,
    stderr: bool,
    rank: int,
    attempt: int | None,
    tail: int | None,
) -> None:
    """Print the output of a job.

    The job's standard output goes to standard output, its standard error to standard error.

    \b
    muster logs train
    muster logs -f --tail 20 train
    muster logs --stderr j4f2a5lc6kq 2>&1 | less
    muster logs --attempt 1 train
    muster logs chat/2                # replica 2 of the model chat
    """
    profile = read_profile()
    wanted = (stream,) if stream else ("stderr",) if stderr else STREAMS
    job = ask(profile, "GET", job_path(ref))
    job_id = str(job["id"])
    whose = {"rank": rank, "attempt": attempt}
    starts = {
        name: 0 if tail is None else tail_offset(profile, job_id, {**whose, "stream": name}, tail)
        for name in wanted
    }
    printed = _Printed()
    if follow and attempt in (None, job["attempt"]):
        job = attach(
            profile,
            job_id,
            rank=rank,
            listener=Listener(
                lambda name, data: printed.write(name, data) if name in wanted else None,
                lambda *_: None,
            ),
            starts=starts,
        )
    else:
        for name in wanted:
            _print(profile, job_id, {**whose, "stream": name, "offset": starts[name]}, printed)
    if not printed.any and tail != 0:
        complain(_no_output(job, is_current=not rank and attempt in (None, job.get("attempt"))))


class _Printed:
    """Writes output, and remembers whether there was any."""

    def __init__(self) -> None:
        self.any = False

    def write(self, stream: str, data: bytes) -> None:
        self.any = self.any or bool(data)
        file = sys.stderr.buffer if stream == "stderr" else sys.stdout.buffer
        file.write(data)
        file.flush()


def _no_output(job: dict[str, Any], is_current: bool) -> str:
    """Return the line about an empty output. The exit code is that of the last attempt."""
    state, code = str(job.get("state")), job.get("exit_code")
    if not is_current:
        return "no output"
    if code is not None:
        return f"no output; exit code {code}"
    return f"no output; the job is {state}"


def _print(profile: Profile, job_id: str, query: dict[str, Any], printed: _Printed) -> None:
    """Print one stream, with a note on stderr if its beginning is not kept any more."""
    stream = query["stream"]
    with opened(profile, job_path(job_id, "output"), query) as answer:
        begin = int(answer.headers.get(OFFSET_HEADER) or 0)
        if begin > query["offset"]:
            pruned = answer.headers.get(SOURCE_HEADER, "").partition(", ")[2]
            why = f"were {pruned}" if pruned else "are no longer kept"
            printed.any = True
            complain(f"the first {begin} bytes of {stream} {why}; the output starts behind them")
        for piece in answer.pieces():
            printed.write(stream, piece)
