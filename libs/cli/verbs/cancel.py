"""`muster cancel`."""

import click

from libs.cli.flags.durations import DURATION
from libs.cli.following.waiting import wait_for_end
from libs.cli.gateway import ask, job_path
from libs.cli.many import each_of
from libs.client.profile import read_profile


@click.command(short_help="Stop jobs: send a signal, then SIGKILL after a grace period.")
@click.argument("refs", nargs=-1, required=True, metavar="JOB...")
@click.option(
    "-s", "--signal", metavar="SIG", help="Signal to send first: TERM (default), INT, USR1, 15 ..."
)
@click.option(
    "--grace",
    "grace_s",
    type=DURATION,
    help="Time between the signal and SIGKILL (default: the job's own).",
)
@click.option("--wait", is_flag=True, help="Return when the jobs have ended.")
def command(refs: tuple[str, ...], signal: str | None, grace_s: int | None, wait: bool) -> int:
    """Stop jobs: send a signal, then SIGKILL after a grace period.

    \b
    muster cancel train
    muster cancel --signal INT --grace 1m j4f2a5lc6kq j7b3oaa3epw
    """
    profile = read_profile()
    wanted = {"signal": signal, "grace_s": grace_s, "user": profile.user}
    body = {name: value for name, value in wanted.items() if value is not None}

    def cancel(ref: str) -> None:
        job = ask(profile, "POST", job_path(ref, "cancel"), body=body)
        if wait:
            wait_for_end(profile, str(job.get("id") or ref))

    return each_of(refs, cancel)
