"""`muster alloc`: devices held for a person or another system, without a command."""

import shlex
from typing import Any, Final

import click

from libs.cli.flags.durations import parse_instant, show_duration
from libs.cli.flags.jobflags import DURATION, Asked, allocation_flags, asked_job
from libs.cli.following.waiting import wait_for
from libs.cli.gateway import Json, allocation_path, ask
from libs.cli.jobs import ENDED, utc_now
from libs.cli.profile import Profile, read_profile
from libs.cli.terminal.output import complain, print_table, print_value
from libs.cli.terminal.table import Column

NOT_HELD: Final = 1
BEGUN: Final = ("running", "releasing", *ENDED)
COLUMNS: Final = (Column("NODE"), Column("GPUS"), Column("ENVIRONMENT"))


@click.command(short_help="Hold GPUs for a while, without a command.")
@click.option("--expires", type=DURATION, help="How long, from their placement on (default 1h).")
@click.option("--warn", type=DURATION, help="How long before that it is said (default 5m).")
@click.option(
    "--wait/--no-wait",
    default=True,
    help="Return when they are held (default), or at once with the id alone.",
)
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "env", "json", "yaml"]),
    default="table",
    help="How to print it.",
)
@allocation_flags
def command(expires: int | None, warn: int | None, wait: bool, form: str, **asked: object) -> int:
    """Hold GPUs for a while, without a command.

    They are placed, counted and charged as a job's. Work there by muster exec, or by what -o env
    prints.

    \b
    muster alloc --gpus 2 --expires 4h --label team=vision
    muster exec -it JOB                       # a shell with these devices
    muster extend JOB --by 1h
    muster release JOB                        # give them back
    eval "$(muster alloc -w node-1 -o env)"   # on that node: the variables

    Ctrl-C while it waits gives it up. Exit code: 0 when it is held, 1 when it ended before that.
    """
    if form == "env" and (not wait or asked["nodes"] not in (None, {"nodes": 1})):
        raise click.UsageError(
            "-o env is of one node whose devices are known: leave out --no-wait and --nodes"
        )
    profile = read_profile()
    time = {
        name: value for name, value in (("expires", expires), ("warn", warn)) if value is not None
    }
    shown = ask(profile, "POST", "/v1/allocations", body=_wish(profile, asked) | time)
    if wait:
        shown = _held(profile, str(shown["id"]))
    if shown["state"] in ENDED:
        complain(
            f"{shown['id']} is not held: it is "
            f"{shown['state']}{': ' + shown['reason'] if shown['reason'] else ''}"
        )
        return NOT_HELD
    _print(shown, form)
    return 0


def _wish(profile: Profile, asked: Asked) -> dict[str, Any]:
    wish = asked_job((), profile.user, {"upload": None, **asked})
    del wish["command"]
    return wish


def _held(profile: Profile, job_id: str) -> Json:
    try:
        wait_for(profile, job_id, BEGUN)
    except KeyboardInterrupt:
        ask(profile, "DELETE", allocation_path(job_id))
        complain(f"gave {job_id} up")
        raise
    return ask(profile, "GET", allocation_path(job_id))


def _print(shown: Json, form: str) -> None:
    if form == "env":
        print(
            "\n".join(
                f"export {name}={shlex.quote(value)}"
                for node in shown["nodes"]
                for name, value in node["env"].items()
            )
        )
    elif not print_value(shown, form):
        print(shown["id"])
        if shown["nodes"]:
            print_table(COLUMNS, [_row(node) for node in shown["nodes"]])
            print(until_line(shown))


def _row(node: Json) -> list[str]:
    env = " ".join(f"{name}={value}" for name, value in node["env"].items())
    return [node["node_id"], ",".join(gpu["uuid"] for gpu in node["gpus"]) or "-", env or "-"]


def until_line(shown: Json) -> str:
    """When it is over."""
    over = parse_instant(shown["expires_at"])
    assert over is not None, "an allocation that is held ends at some time"
    return (
        f"held until {over.astimezone():%Y-%m-%d %H:%M:%S}, for "
        f"{show_duration((over - utc_now()).total_seconds())}"
    )
