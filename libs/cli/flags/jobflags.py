"""What a job may ask for, as flags of `muster run`, `submit` and `alloc`; gives the JSON for POST
/v1/jobs and /v1/allocations.

Names follow what people type elsewhere (-N, -J, -t). A flag that was not given is not sent: the
gateway's defaults hold.
"""

import os
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from libs.cli.flags import order_flags, placement_flags, preemption_flags
from libs.cli.flags.durations import parse_duration
from libs.cli.flags.numbers import Nodes, Number

F = TypeVar("F", bound=Callable[..., Any])
Asked = dict[str, Any]


class Duration(click.ParamType[int]):
    """A length of time as a flag's value, in seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            return value if isinstance(value, int) else parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = Duration()

# What a job and an allocation alike may ask for.
_WISHES = (
    click.option("-g", "--gpus", type=int, metavar="N", help="GPUs on each node (default 1)."),
    click.option(
        "-N",
        "--nodes",
        type=Nodes(),
        metavar="N",
        help="Nodes; all at once or none (default 1). 2..8: as many as there are.",
    ),
    click.option(
        "--fraction",
        type=Number(),
        metavar="F",
        help="The part of each GPU, 0.01 to 1.0 (default: the whole).",
    ),
    click.option(
        "-J", "--name", metavar="NAME", help="A name for it; can be used in place of its id."
    ),
    click.option(
        "-l",
        "--label",
        "labels",
        multiple=True,
        metavar="K=V",
        help="A label; may be given more than once.",
    ),
    click.option(
        "-e",
        "--env",
        multiple=True,
        metavar="K=V",
        help="An environment variable; K alone passes yours on.",
    ),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="NAME[=ENV]",
        help="A secret of your tenant, as a variable (muster secret).",
    ),
    click.option("-C", "--workdir", metavar="DIR", help="Working directory (default: this one)."),
    click.option(
        "-p", "--priority", type=int, metavar="N", help="0 to 100, larger is sooner (default 50)."
    ),
    click.option(
        "--grace",
        "grace_s",
        type=DURATION,
        help="From the signal to stop until the kill (default 10s).",
    ),
    click.option(
        "--start", "start_s", type=DURATION, help="How long its start may take (default 30s)."
    ),
    click.option(
        "--reject-if-impossible", is_flag=True, help="Refuse it now if no node could ever run it."
    ),
    click.option(
        "--on-control-loss",
        type=click.Choice(["stop", "continue"]),
        help="What it does when its node is cut off (default: stop).",
    ),
    click.option(
        "--scheduling-policy",
        type=click.Choice(["fifo", "priority", "affinity", "gang", "real_time"]),
        help="What it counts on of its queue; what contradicts that is refused.",
    ),
    *placement_flags.FLAGS,
    *preemption_flags.FLAGS,
)
# How a command runs, and when.
_FLAGS = (
    click.option(
        "--upload",
        metavar="DIR",
        help=(
            "Take this directory along, less what .musterignore (.gitignore) names; it runs there."
        ),
    ),
    click.option(
        "--image",
        metavar="NAME",
        help="Run the command in a container of this image (Docker or Podman on the node).",
    ),
    click.option(
        "-t", "--time", "time_limit_s", type=DURATION, help="Time limit: 90, 1h30m or 1-12:00:00."
    ),
    click.option(
        "--hang-timeout",
        "hang_timeout_s",
        type=DURATION,
        help="End it when it keeps its GPUs busy without progress for so long.",
    ),
    click.option(
        "--retries",
        type=int,
        metavar="N",
        help="How often it is started again when it fails (default 0).",
    ),
    click.option(
        "--requeue/--no-requeue",
        default=None,
        help="Whether it may be started again when its node is lost.",
    ),
    *order_flags.FLAGS,
    *_WISHES,
)
# Flags that say something by being false.
SAY_NO = ("requeue", "allow_cross_numa")


def job_flags(verb: F) -> F:
    """All of them, on a verb that takes `**asked`."""
    for flag in reversed(_FLAGS):
        verb = flag(verb)
    return verb


def allocation_flags(verb: F) -> F:
    """Those without a command's."""
    for flag in reversed((*_WISHES, order_flags.QUEUE)):
        verb = flag(verb)
    return verb


def asked_job(command: Iterable[str], user: str, asked: Asked) -> dict[str, Any]:
    """The job as the gateway takes it, from the flags' values, but for `upload`, which still is a
    directory (`uploading.brought`).

    Raises UsageError for a bad K=V.
    """
    job = {name: value for name, value in asked.items() if was_given(name, value)}
    job |= job.pop("nodes", {})
    job["command"] = list(command)
    job["user"] = user
    if asked["upload"] and asked["workdir"]:
        raise click.UsageError("--upload is the job's working directory: leave out --workdir")
    if not asked["upload"] and (asked["workdir"] or not asked.get("image")):
        job["workdir"] = working_directory(asked["workdir"])
    job["labels"] = pairs(asked["labels"], "--label")
    job["secrets"] = secrets(asked["secrets"])
    job["env"] = pairs(asked["env"], "--env", os.environ.get)
    for name, flag in placement_flags.PAIRS.items():
        if name in job:
            job[name] = pairs(asked[name], flag)
    return job


def secrets(texts: Iterable[str]) -> dict[str, str]:
    """NAME[=ENV] as {variable: name}; the variable of hf-token is HF_TOKEN.

    Raises UsageError for a variable that is given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, given = text.partition("=")
        variable = given or re.sub(r"[^A-Z0-9_]", "_", name.upper())
        if not name or variable in found:
            raise click.UsageError(f"--secret {text!r} must be NAME or NAME=ENV, each ENV once")
        found[variable] = name
    return found


def was_given(name: str, value: object) -> bool:
    """Whether a flag was given: 0 is a value, and `--no-requeue` says something by being false."""
    absent = value is None or value == () or (value is False and name not in SAY_NO)
    return not absent


def working_directory(given: str | None) -> str:
    """An absolute path: a node has no other idea of where `here` is."""
    try:
        return os.path.abspath(given or "")
    except FileNotFoundError:
        raise click.UsageError("this directory was removed: give --workdir") from None


def pairs(
    texts: Iterable[str], flag: str, value_of: Callable[[str], str | None] = lambda _: None
) -> dict[str, str]:
    """K=V texts as a mapping; `value_of` answers for a K alone."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        passed_on = value if equals else value_of(name)
        if not name or passed_on is None:
            raise click.UsageError(f"{flag} {text!r} must be K=V")
        found[name] = passed_on
    return found
