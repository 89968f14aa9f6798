"""The common part of the verbs of `muster gpu`: select GPUs, send a control, report the outcome."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

import click

from libs.cli.flags.durations import DURATION
from libs.cli.gateway import Json, ask
from libs.cli.many import each_of
from libs.cli.terminal.output import complain
from libs.client.profile import Profile, read_profile

DEFAULT: Final = "default"
POLL_EVERY_S: Final = 0.2
# The default of --timeout.
WAIT_S: Final = 15
# Outcomes that count as success.
SUCCESS: Final = ("done", "lacking")


class Where(NamedTuple):
    """The selected GPUs, and how long to wait for the outcome."""

    uuids: Sequence[str]
    nodes: Sequence[str]
    timeout_s: int
    no_wait: bool


def devices(verb: Callable[..., int]) -> Callable[..., int]:
    """Add the options that select GPUs and the wait, as the argument `where`."""

    @functools.wraps(verb)
    def packed(
        uuids: Sequence[str], nodes: Sequence[str], timeout_s: int, no_wait: bool, **given: object
    ) -> int:
        return verb(**given, where=Where(uuids, nodes, timeout_s, no_wait))

    options = (
        click.option(
            "--gpu-id",
            "uuids",
            multiple=True,
            metavar="UUID",
            help="Select this GPU (repeatable).",
        ),
        click.option(
            "--node",
            "nodes",
            multiple=True,
            metavar="NODE",
            help="Select all GPUs of this node (repeatable).",
        ),
        click.option(
            "--timeout",
            "timeout_s",
            type=DURATION,
            default=str(WAIT_S),
            metavar="DURATION",
            help="Time to wait for the outcome (default: 15s).",
        ),
        click.option(
            "--no-wait", is_flag=True, help="Return at once, without waiting for the outcome."
        ),
    )
    for option in reversed(options):
        packed = option(packed)
    return packed


def value(metavar: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add the argument `value`, or --default instead of it."""

    def with_value(verb: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(verb)
        def packed(value: str, default: bool, **given: object) -> int:
            if bool(value) == default:
                raise click.UsageError(f"give {metavar} or --default")
            return verb(value=DEFAULT if default else value, **given)

        option = click.option("--default", is_flag=True, help="Restore the GPU's default.")
        shown = f"[{metavar}]"
        return click.argument("value", metavar=shown, required=False, default="")(option(packed))

    return with_value


def tell(control: str, value: str, where: Where) -> int:
    """Send a control to GPUs and print the outcome, one line per GPU.

    Return the exit code: 0 if every GPU applied the control or does not support it.
    """
    paths = [f"/v1/nodes/{quote(name, safe='')}" for name in where.nodes] + [
        f"/v1/gpus/{quote(uuid, safe='')}" for uuid in where.uuids
    ]
    if not paths:
        raise click.UsageError("no GPU selected: give --gpu-id UUID or --node NODE")
    profile = read_profile()
    body = {key: text for key, text in (("value", value), ("user", profile.user)) if text}
    requested: list[Json] = []

    def put(path: str) -> None:
        found = ask(profile, "PUT", f"{path}/controls/{control}", body=body)
        requested.extend(found.get("gpus", [found]))

    code = each_of(paths, put)
    if where.no_wait:
        return code
    deadline_s = time.monotonic() + where.timeout_s
    return max(
        [
            code,
            *(
                _outcome(profile, control, gpu, deadline_s)
                for gpu in {gpu["uuid"]: gpu for gpu in requested}.values()
            ),
        ]
    )


def _outcome(profile: Profile, control: str, gpu: Json, deadline_s: float) -> int:
    uuid, mine = str(gpu["uuid"]), gpu["controls"][control]["request"]
    found = gpu["controls"][control]
    while not found["outcome"] and found["request"] == mine and time.monotonic() < deadline_s:
        time.sleep(POLL_EVERY_S)
        found = ask(profile, "GET", f"/v1/gpus/{quote(uuid, safe='')}")["controls"][control]
    if found["request"] != mine:
        complain(f"GPU {uuid}: {found['user'] or 'another user'} has set {control} again meanwhile")
        return 1
    if not found["outcome"]:
        complain(
            f"GPU {uuid}: the node has not reported the outcome of {control} yet; check "
            "later with: "
            f"muster health --gpu-id {uuid}"
        )
        return 1
    print(f"GPU {uuid}: {worded(control, found)}")
    return 0 if found["outcome"] in SUCCESS else 1


def worded(control: str, found: Json) -> str:
    """Return a control and its outcome: `power 300: done`, `reset: lacking (reason)`."""
    name = f"{control} {found['value'] or 'default'}" if control != "reset" else control
    outcome = str(found["outcome"] or "requested") + (
        f" ({found['detail']})" if found["detail"] else ""
    )
    own = (
        f", {found['in_force'] or 'default'} in force"
        if found["in_force"] != found["value"] and control != "reset"
        else ""
    )
    return f"{name}: {outcome}{own}"
