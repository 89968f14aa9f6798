"""The job flags of `muster run`, `submit`, `whatif` and `alloc`.

They become the JSON body of POST /v1/jobs and /v1/allocations. Names follow Slurm (-N, -J, -t). The
command sends only flags that were given, so the gateway's defaults apply to the rest.
"""

import os
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from libs.cli.flags import container_flags, order_flags, placement_flags, preemption_flags
from libs.cli.flags.durations import DURATION
from libs.cli.flags.numbers import Nodes, Number

F = TypeVar("F", bound=Callable[..., Any])
FlagValues = dict[str, Any]


# Flags of jobs and allocations.
_REQUEST_FLAGS = (
    click.option("-g", "--gpus", type=int, metavar="N", help="GPUs on each node (default: 1)."),
    click.option(
        "-N",
        "--nodes",
        type=Nodes(),
        metavar="N",
        help=(
            "Number of nodes. The job starts on all of them or not at all (default: 1). With a "
            "range such as 2..8 it starts on as many as are free."
        ),
    ),
    click.option(
        "--fraction",
        type=Number(),
        metavar="F",
        help="Fraction of each GPU, 0.01 to 1.0 (default: 1.0).",
    ),
    click.option(
        "-J", "--name", metavar="NAME", help="Job name. Other commands accept it instead of the id."
    ),
    click.option(
        "-l",
        "--label",
        "labels",
        multiple=True,
        metavar="K=V",
        help="Add a label (repeatable).",
    ),
    click.option(
        "-e",
        "--env",
        multiple=True,
        metavar="K=V",
        help=(
            "Set an environment variable. K alone copies the value from your environment "
            "(repeatable)."
        ),
    ),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="NAME[=ENV]",
        help=(
            "Set the environment variable ENV to a secret of your tenant. ENV defaults to NAME in "
            "upper case (repeatable)."
        ),
    ),
    click.option(
        "-C",
        "--workdir",
        metavar="DIR",
        help="Working directory on the node (default: the current path).",
    ),
    click.option(
        "-p",
        "--priority",
        type=int,
        metavar="N",
        help="Priority, 0 to 100; a higher one starts first (default: 50).",
    ),
    click.option(
        "--grace",
        "grace_s",
        type=DURATION,
        help="Time between the stop signal and SIGKILL (default: 10s).",
    ),
    click.option(
        "--start",
        "start_s",
        type=DURATION,
        help=(
            "Time within which the job must start on its node. This includes its upload (default: "
            "30s)."
        ),
    ),
    click.option(
        "--reject-if-impossible",
        is_flag=True,
        help="Reject the job now if no node of the cluster could ever run it.",
    ),
    click.option(
        "--on-control-loss",
        type=click.Choice(["stop", "continue"]),
        help=(
            "Stop the job, or let it continue, when its node loses contact with the scheduler "
            "(default: stop)."
        ),
    ),
    click.option(
        "--scheduling-policy",
        type=click.Choice(["fifo", "priority", "affinity", "gang", "real_time"]),
        help=(
            "Require a guarantee of the default order (docs/rest.md): set the options that follow "
            "from it, and refuse options that contradict it. A queue with another policy keeps its "
            "own order."
        ),
    ),
    container_flags.IMAGE,
    *container_flags.OPTIONS,
    *placement_flags.FLAGS,
    *preemption_flags.FLAGS,
)
# Flags of jobs alone: how and when the command runs.
_FLAGS = (
    click.option(
        "--upload",
        metavar="DIR",
        help=(
            "Upload this directory and run the job in it. Files that .musterignore (or .gitignore) "
            "names are not uploaded."
        ),
    ),
    container_flags.ENTRYPOINT,
    click.option(
        "-t",
        "--time",
        "time_limit_s",
        type=DURATION,
        help="Maximum run time, for example 90s, 1h30m or 1-12:00:00.",
    ),
    click.option(
        "--hang-timeout",
        "hang_timeout_s",
        type=DURATION,
        help=(
            "End the job if a GPU of it is busy for this long but the job makes no progress "
            "(default: never)."
        ),
    ),
    click.option(
        "--retries",
        type=int,
        metavar="N",
        help="Number of restarts after a failure (default: 0).",
    ),
    click.option(
        "--requeue/--no-requeue",
        default=None,
        help="Restart the job if its node is lost (default: yes).",
    ),
    *order_flags.FLAGS,
    *_REQUEST_FLAGS,
)
# Flags whose value False is sent: `--no-requeue`.
SENT_IF_FALSE = ("requeue", "allow_cross_numa", "continues_streams")


def job_flags(verb: F) -> F:
    """Add every job flag to a verb that takes `**values`."""
    for flag in reversed(_FLAGS):
        verb = flag(verb)
    return verb


def allocation_flags(verb: F) -> F:
    """Add the flags of an allocation: all but those about a command."""
    for flag in reversed((*_REQUEST_FLAGS, order_flags.QUEUE)):
        verb = flag(verb)
    return verb


def job_body(command: Iterable[str], user: str, values: FlagValues) -> dict[str, Any]:
    """Return the body for POST /v1/jobs from the values of the flags.

    `upload` is still a directory; `uploading.with_upload` replaces it. Raises UsageError for an
    invalid K=V.
    """
    job = {name: value for name, value in values.items() if was_given(name, value)}
    job |= job.pop("nodes", {})
    job["command"] = list(command)
    job["user"] = user
    if values["upload"] and values["workdir"]:
        raise click.UsageError("--upload sets the working directory: remove --workdir")
    if not values["upload"] and (values["workdir"] or not values.get("image")):
        job["workdir"] = working_directory(values["workdir"])
    job["labels"] = pairs(values["labels"], "--label")
    job["secrets"] = secrets(values["secrets"])
    job["env"] = pairs(values["env"], "--env", os.environ.get)
    for name, flag in placement_flags.PAIRS.items():
        if name in job:
            job[name] = pairs(values[name], flag)
    return container_flags.with_container(job)


def secrets(texts: Iterable[str]) -> dict[str, str]:
    """Return {variable: secret} for texts NAME[=ENV]; the variable of hf-token is HF_TOKEN.

    Raises UsageError if two texts set the same variable.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, given = text.partition("=")
        variable = given or re.sub(r"[^A-Z0-9_]", "_", name.upper())
        if not name or variable in found:
            raise click.UsageError(
                f"--secret {text!r}: use NAME or NAME=ENV, and each ENV only once"
            )
        found[variable] = name
    return found


def was_given(name: str, value: object) -> bool:
    """Return True if the user gave the flag; 0 and the False of `--no-requeue` are values."""
    absent = value is None or value == () or (value is False and name not in SENT_IF_FALSE)
    return not absent


def working_directory(given: str | None) -> str:
    """Return an absolute path, because the job runs on another machine.

    Raises UsageError if the current directory does not exist any more.
    """
    try:
        return os.path.abspath(given or "")
    except FileNotFoundError:
        raise click.UsageError(
            "the current directory does not exist any more: give --workdir DIR"
        ) from None


def pairs(
    texts: Iterable[str], flag: str, value_of: Callable[[str], str | None] = lambda _: None
) -> dict[str, str]:
    """Return K=V texts as a mapping; `value_of` gives the value for a K alone."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        passed_on = value if equals else value_of(name)
        if not name or passed_on is None:
            raise click.UsageError(f"{flag} {text!r}: use K=V")
        found[name] = passed_on
    return found
