"""What a model may be given, as flags of `muster deploy` and `muster redeploy`; gives the JSON for
/v1/deployments.

As in `jobflags.py`, a flag that was not given is not sent: the gateway's defaults hold, or on a
redeployment what was there.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from libs.cli.flags import placement_flags
from libs.cli.flags.jobflags import DURATION, pairs, secrets, was_given
from libs.cli.flags.numbers import Number
from libs.common.model import SPREADS

F = TypeVar("F", bound=Callable[..., Any])

_FLAGS = (
    click.option(
        "-r",
        "--replicas",
        type=int,
        metavar="N",
        help="How many of it serve at the same time (default 1).",
    ),
    click.option(
        "-g", "--gpus", type=int, metavar="N", help="GPUs of each replica, on one node (default 1)."
    ),
    click.option(
        "--fraction",
        type=Number(),
        metavar="F",
        help="The part of each GPU, 0.01 to 1.0 (default: the whole).",
    ),
    click.option(
        "--health-path",
        metavar="PATH",
        help="Where a GET answers 2xx as soon as it can serve (default /health).",
    ),
    click.option(
        "--health-interval",
        "health_interval_s",
        type=DURATION,
        help="Time between two health probes of a ready replica (default 5s).",
    ),
    click.option(
        "--health-timeout",
        "health_timeout_s",
        type=DURATION,
        help="Time to answer a health probe (default 2s, MUSTER_PROBE_MS).",
    ),
    click.option(
        "--health-failures",
        type=int,
        metavar="N",
        help="Failed probes in a row that make a replica unready (default 3).",
    ),
    click.option(
        "--startup-timeout",
        "startup_timeout_s",
        type=DURATION,
        help="How long it may not be ready (default 10m).",
    ),
    click.option(
        "-e",
        "--env",
        multiple=True,
        metavar="K=V",
        help="An environment variable; K alone passes yours on.",
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
        "--secret",
        "secrets",
        multiple=True,
        metavar="NAME[=ENV]",
        help="A secret of your tenant, as a variable (muster secret).",
    ),
    click.option(
        "-C", "--workdir", metavar="DIR", help="Working directory on the node (default: its home)."
    ),
    click.option(
        "--upload",
        metavar="DIR",
        help=(
            "Take this directory along, less what .musterignore (.gitignore) names; it runs there."
        ),
    ),
    click.option(
        "-p", "--priority", type=int, metavar="N", help="0 to 100, larger is sooner (default 50)."
    ),
    click.option(
        "--grace",
        "grace_s",
        type=DURATION,
        help=(
            "Time to finish answers before SIGTERM, and again from there to SIGKILL (default 10s)."
        ),
    ),
    click.option(
        "--spread",
        type=click.Choice(SPREADS),
        help=(
            "Place replicas on different nodes (default) or in different racks where there is "
            "room. none: no preference."
        ),
    ),
    click.option(
        "--wait",
        is_flag=True,
        help="Return when as many as asked for are ready; 1 when it crashes instead.",
    ),
    *placement_flags.NODE_FLAGS,
)


def model_flags(verb: F) -> F:
    """All of them, on a verb that takes `**asked`."""
    for flag in reversed(_FLAGS):
        verb = flag(verb)
    return verb


def asked_model(command: Iterable[str], user: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The body for the gateway, from the flags' values, but for `upload`, which still is a
    directory (`uploading.brought`).

    Raises UsageError for a bad K=V.
    """
    body = {name: value for name, value in asked.items() if was_given(name, value)}
    words = list(command)
    if words:
        body["command"] = words
    if asked["env"]:
        body["env"] = pairs(asked["env"], "--env", os.environ.get)
    if asked["secrets"]:
        body["secrets"] = secrets(asked["secrets"])
    for name, flag in {"labels": "--label", **placement_flags.PAIRS}.items():
        if name in body:
            body[name] = pairs(asked[name], flag)
    return {**body, "user": user}
