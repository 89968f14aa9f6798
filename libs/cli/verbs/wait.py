"""`muster wait`."""

import time

import click

from libs.cli.flags.durations import DURATION
from libs.cli.following.waiting import wait_for_end
from libs.cli.jobs import ENDED, exit_code_of
from libs.cli.terminal.output import complain
from libs.client.profile import read_profile

TIMED_OUT = 124


@click.command(short_help="Wait for jobs to end, and exit with their exit code.")
@click.argument("refs", nargs=-1, required=True, metavar="JOB...")
@click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    help="Stop waiting after this time, with exit code 124.",
)
def command(refs: tuple[str, ...], timeout_s: int | None) -> int:
    """Wait for jobs to end, and exit with their exit code.

    For several jobs, the exit code is the first one that is not 0.

    \b
    muster wait train && muster submit evaluate.yaml
    muster wait --timeout 1h j4f2a5lc6kq j7b3oaa3epw
    """
    profile = read_profile()
    until = None if timeout_s is None else time.monotonic() + timeout_s
    code = 0
    for ref in refs:
        job = wait_for_end(profile, ref, until)
        if job["state"] not in ENDED:
            complain(f"job {ref} is still {job['state']} after {timeout_s} s")
            return TIMED_OUT
        code = code or exit_code_of(job)
    return code
