"""The common part of `muster drain`, `offline` and `online`."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from urllib.parse import quote

import click

from libs.cli.gateway import Json, ask
from libs.cli.many import each_of
from libs.cli.terminal.gpus import print_gpus
from libs.cli.terminal.table import clean
from libs.client.profile import read_profile

# States of health in which a GPU takes jobs (docs/gpu-life.md).
TAKES_WORK: Final = ("healthy", "degraded")

F = TypeVar("F", bound=Callable[..., object])


def devices(verb: F) -> F:
    """Add the arguments NODE... and --gpu-id."""
    option = click.option(
        "--gpu-id",
        "uuids",
        multiple=True,
        metavar="UUID",
        help="Select this GPU (repeatable).",
    )
    return click.argument("nodes", nargs=-1, metavar="[NODE...]")(option(verb))


def set_service(
    service: str, nodes: Sequence[str], uuids: Sequence[str], force: bool = False
) -> int:
    """Set the service state and print the jobs left there, or for `online` the GPUs' states.

    Return 0 if nothing was refused, else 1.
    """
    paths = [f"/v1/nodes/{quote(name, safe='')}/service" for name in nodes] + [
        f"/v1/gpus/{quote(uuid, safe='')}/service" for uuid in uuids
    ]
    if not paths:
        raise click.UsageError("nothing selected: give a NODE or --gpu-id UUID")
    profile = read_profile()
    body = {"service": service, "force": force, "user": profile.user}
    seen: list[Json] = []

    def put(path: str) -> None:
        answer = ask(profile, "PUT", path, body=body)
        seen.extend(answer.get("gpus", [answer]))

    code = each_of(paths, put)
    if service == "online":
        _print_online(seen)
        return code
    left = [gpu for gpu in seen if gpu["holders"]]
    if left:
        print_gpus(left, wide=False, no_headers=False)
    elif seen:
        print("no job uses these GPUs")
    return code


def _print_online(gpus: Sequence[Json]) -> None:
    """Print one line per GPU. An unhealthy GPU can be online and still take no jobs."""
    for gpu in gpus:
        name = f"GPU {gpu['uuid']} of {gpu['node_id']}"
        if gpu["present"] and gpu["health"] in TAKES_WORK:
            print(clean(f"{name}: online, {str(gpu['state']).lower()}"))
        else:
            why = f" ({gpu['reason']})" if gpu["reason"] else ""
            more = f": {gpu['detail']}" if gpu["detail"] else ""
            print(
                clean(
                    f"{name}: online, but {gpu['health']}{why}; it takes no jobs until it has "
                    f"recovered{more}"
                )
            )
            if gpu["verdict"] == "reboot_node":
                print(
                    clean(
                        "  when the cause is fixed, reset the GPU (muster gpu reset --gpu-id "
                        f"{gpu['uuid']}) or reboot {gpu['node_id']}"
                    )
                )
