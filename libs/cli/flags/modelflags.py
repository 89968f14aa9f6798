"""The model flags of `muster deploy` and `muster redeploy`.

They become the JSON body of /v1/deployments. The command sends only flags that were given: the
gateway's defaults, or on a redeployment the current values, apply to the rest.
"""

import os
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import click

from libs.cli.flags import placement_flags
from libs.cli.flags.durations import DURATION
from libs.cli.flags.jobflags import pairs, secrets, was_given
from libs.cli.flags.numbers import Number
from libs.common.model import SPREADS

F = TypeVar("F", bound=Callable[..., Any])
_DEFAULT: Final = re.compile(r" \(default(: [^)]*)?\)")

_FLAGS = (
    click.option(
        "-r",
        "--replicas",
        type=int,
        metavar="N",
        help="Number of replicas (default: 1).",
    ),
    click.option(
        "-g",
        "--gpus",
        type=int,
        metavar="N",
        help="GPUs of each replica, all on one node (default: 1).",
    ),
    click.option(
        "--fraction",
        type=Number(),
        metavar="F",
        help="Fraction of each GPU, 0.01 to 1.0 (default: 1.0).",
    ),
    click.option(
        "--health-path",
        metavar="PATH",
        help="HTTP path that answers GET with 2xx when the replica can serve (default: /health).",
    ),
    click.option(
        "--health-interval",
        "health_interval_s",
        type=DURATION,
        help="Time between two health probes of a ready replica (default: 5s).",
    ),
    click.option(
        "--health-timeout",
        "health_timeout_s",
        type=DURATION,
        help="Time to answer a health probe (default: MUSTER_PROBE_MS, 2s).",
    ),
    click.option(
        "--health-failures",
        type=int,
        metavar="N",
        help="Failed probes in a row that make a replica unready (default: 3).",
    ),
    click.option(
        "--startup-timeout",
        "startup_timeout_s",
        type=DURATION,
        help="Time within which a new replica must be ready (default: 10m).",
    ),
    click.option(
        "-e",
        "--env",
        multiple=True,
        metavar="K=V",
        help="Set an environment variable; K alone copies your own (repeatable).",
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
        "--secret",
        "secrets",
        multiple=True,
        metavar="NAME[=ENV]",
        help=(
            "Set a variable to a secret of your tenant; ENV defaults to NAME in upper case "
            "(repeatable)."
        ),
    ),
    click.option(
        "-C",
        "--workdir",
        metavar="DIR",
        help="Working directory on the node (default: the home directory).",
    ),
    click.option(
        "--upload",
        metavar="DIR",
        help=(
            "Upload this directory and run the replicas in it. Files that .musterignore (or "
            ".gitignore) names stay out."
        ),
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
        help=(
            "Time to finish open answers before SIGTERM, and again between SIGTERM and SIGKILL "
            "(default: 10s)."
        ),
    ),
    click.option(
        "--spread",
        type=click.Choice(SPREADS),
        help=(
            "Prefer to place replicas on different nodes (default) or in different racks, or "
            "place them anywhere (none)."
        ),
    ),
    click.option(
        "--wait",
        is_flag=True,
        help="Return when all replicas are ready, or with exit code 1 if they crash.",
    ),
    *placement_flags.NODE_FLAGS,
)


def model_flags(verb: F) -> F:
    """Add every model flag to a verb that takes `**values`."""
    for flag in reversed(_FLAGS):
        verb = flag(verb)
    return verb


def redeployment_flags(verb: F) -> F:
    """Add every model flag, without defaults in the help: a flag that is not given keeps the
    model's current value.
    """
    verb = model_flags(verb)
    for option in vars(verb)["__click_params__"]:
        if isinstance(option, click.Option):
            option.help = _DEFAULT.sub("", option.help or "")
    return verb


def model_body(command: Iterable[str], user: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the body for /v1/deployments from the values of the flags.

    `upload` is still a directory; `uploading.with_upload` replaces it. Raises UsageError for an
    invalid K=V.
    """
    body = {name: value for name, value in values.items() if was_given(name, value)}
    words = list(command)
    if words:
        body["command"] = words
    if values["env"]:
        body["env"] = pairs(values["env"], "--env", os.environ.get)
    if values["secrets"]:
        body["secrets"] = secrets(values["secrets"])
    for name, flag in {"labels": "--label", **placement_flags.PAIRS}.items():
        if name in body:
            body[name] = pairs(values[name], flag)
    return {**body, "user": user}
