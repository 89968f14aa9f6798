"""`muster alloc`: hold GPUs for a person or another system, without a command."""

import shlex
from typing import Any, Final

import click

from libs.cli.flags.durations import DURATION, parse_instant, show_duration
from libs.cli.flags.jobflags import FlagValues, allocation_flags, job_body
from libs.cli.following.waiting import wait_for
from libs.cli.gateway import Json, allocation_path, ask
from libs.cli.jobs import ENDED, utc_now
from libs.cli.terminal.output import complain, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import Profile, read_profile

NOT_HELD: Final = 1
BEGUN: Final = ("running", "releasing", *ENDED)
COLUMNS: Final = (Column("NODE"), Column("GPUS"), Column("ENVIRONMENT"))


@click.command(short_help="Hold GPUs for a while, without a command.")
@click.option(
    "--expires", type=DURATION, help="Time to hold the GPUs, from placement on (default: 1h)."
)
@click.option(
    "--warn", type=DURATION, help="Time before the end at which a warning is logged (default: 5m)."
)
@click.option(
    "--wait/--no-wait",
    default=True,
    help="Return when the GPUs are held (default), or at once with the id.",
)
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "env", "json", "yaml"]),
    default="table",
    help="Output format.",
)
@allocation_flags
def command(expires: int | None, warn: int | None, wait: bool, form: str, **values: object) -> int:
    """Hold GPUs for a while, without a command.

    An allocation is placed and charged like a job. Use its GPUs with muster exec, or with the
    variables that -o env prints.

    \b
    muster alloc --gpus 2 --expires 4h --label team=vision
    muster exec -it JOB                       # open a shell with these GPUs
    muster extend JOB --by 1h
    muster release JOB                        # give the GPUs back
    eval "$(muster alloc -w node-1 -o env)"   # on node-1: set the variables

    Ctrl-C while the command waits cancels the allocation.

    Exit code: 0 if the GPUs are held, 1 if the allocation ended before that.
    """
    if form == "env" and (not wait or values["nodes"] not in (None, {"nodes": 1})):
        raise click.UsageError(
            "-o env needs one node with known GPUs: remove --no-wait and --nodes"
        )
    profile = read_profile()
    time = {
        name: value for name, value in (("expires", expires), ("warn", warn)) if value is not None
    }
    shown = ask(profile, "POST", "/v1/allocations", body=_request(profile, values) | time)
    if wait:
        shown = _held(profile, str(shown["id"]))
    if shown["state"] in ENDED:
        complain(
            f"allocation {shown['id']} is not held: it is "
            f"{shown['state']}{': ' + shown['reason'] if shown['reason'] else ''}"
        )
        return NOT_HELD
    _print(shown, form)
    return 0


def _request(profile: Profile, values: FlagValues) -> dict[str, Any]:
    request = job_body((), profile.user, {"upload": None, **values})
    del request["command"]
    return request


def _held(profile: Profile, job_id: str) -> Json:
    try:
        wait_for(profile, job_id, BEGUN)
    except KeyboardInterrupt:
        ask(profile, "DELETE", allocation_path(job_id))
        complain(f"cancelled allocation {job_id}")
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
    """Return a line with the end of an allocation and the time left."""
    over = parse_instant(shown["expires_at"])
    assert over is not None, "an allocation that is held ends at some time"
    return (
        f"held until {over.astimezone():%Y-%m-%d %H:%M:%S}, "
        f"{show_duration((over - utc_now()).total_seconds())} more"
    )
