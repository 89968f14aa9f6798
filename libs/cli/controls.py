"""What the verbs of `muster gpu` have in common: which GPUs, what they are told, and what became of
it.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

import click

from libs.cli.flags.jobflags import DURATION
from libs.cli.gateway import Json, ask
from libs.cli.many import each_of
from libs.cli.profile import Profile, read_profile
from libs.cli.terminal.output import complain

DEFAULT: Final = "default"
LOOK_EVERY_S: Final = 0.2
# So long without a word of the node, unless --timeout says otherwise.
WAIT_S: Final = 15
# What became of it that is nobody's fault.
WELL: Final = ("done", "lacking")


class Where(NamedTuple):
    """Which GPUs, and whether to wait for what becomes of it."""

    uuids: Sequence[str]
    nodes: Sequence[str]
    timeout_s: int
    no_wait: bool


def devices(verb: Callable[..., int]) -> Callable[..., int]:
    """The options that say which, and how long to wait, as the argument `where`."""

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
            help="This GPU (can be given again).",
        ),
        click.option(
            "--node",
            "nodes",
            multiple=True,
            metavar="NODE",
            help="All GPUs of this node (can be given again).",
        ),
        click.option(
            "--timeout",
            "timeout_s",
            type=DURATION,
            default=str(WAIT_S),
            metavar="DURATION",
            help="How long to wait for the node.",
        ),
        click.option("--no-wait", is_flag=True, help="Only ask for it."),
    )
    for option in reversed(options):
        packed = option(packed)
    return packed


def value(metavar: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """The argument `value`, or --default in its place."""

    def with_value(verb: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(verb)
        def packed(value: str, default: bool, **given: object) -> int:
            if bool(value) == default:
                raise click.UsageError(f"give {metavar}, or --default")
            return verb(value=DEFAULT if default else value, **given)

        option = click.option(
            "--default", is_flag=True, help="Take it off: as the GPU is by itself."
        )
        return click.argument("value", metavar=metavar, required=False, default="")(option(packed))

    return with_value


def tell(control: str, value: str, where: Where) -> int:
    """Says what became of it, one line for each GPU.

    The exit code: 0 when all was done or is lacking there.
    """
    paths = [f"/v1/nodes/{quote(name, safe='')}" for name in where.nodes] + [
        f"/v1/gpus/{quote(uuid, safe='')}" for uuid in where.uuids
    ]
    if not paths:
        raise click.UsageError("say which: --gpu-id UUID or --node NODE")
    profile = read_profile()
    body = {key: text for key, text in (("value", value), ("user", profile.user)) if text}
    asked: list[Json] = []

    def put(path: str) -> None:
        found = ask(profile, "PUT", f"{path}/controls/{control}", body=body)
        asked.extend(found.get("gpus", [found]))

    code = each_of(paths, put)
    if where.no_wait:
        return code
    deadline_s = time.monotonic() + where.timeout_s
    return max(
        [
            code,
            *(
                _became(profile, control, gpu, deadline_s)
                for gpu in {gpu["uuid"]: gpu for gpu in asked}.values()
            ),
        ]
    )


def _became(profile: Profile, control: str, gpu: Json, deadline_s: float) -> int:
    uuid, mine = str(gpu["uuid"]), gpu["controls"][control]["request"]
    found = gpu["controls"][control]
    while not found["outcome"] and found["request"] == mine and time.monotonic() < deadline_s:
        time.sleep(LOOK_EVERY_S)
        found = ask(profile, "GET", f"/v1/gpus/{quote(uuid, safe='')}")["controls"][control]
    if found["request"] != mine:
        complain(f"GPU {uuid}: {control} was asked for again by {found['user'] or 'someone'}")
        return 1
    if not found["outcome"]:
        complain(
            f"GPU {uuid}: {control} is asked for, and its node has not said what became of "
            f"it yet: muster health --gpu-id {uuid}"
        )
        return 1
    print(f"GPU {uuid}: {worded(control, found)}")
    return 0 if found["outcome"] in WELL else 1


def worded(control: str, found: Json) -> str:
    """`power 300: done`, `reset: lacking (why)`."""
    said = f"{control} {found['value'] or 'default'}" if control != "reset" else control
    outcome = str(found["outcome"] or "asked for") + (
        f" ({found['detail']})" if found["detail"] else ""
    )
    own = (
        f", {found['in_force'] or 'default'} in force"
        if found["in_force"] != found["value"] and control != "reset"
        else ""
    )
    return f"{said}: {outcome}{own}"
