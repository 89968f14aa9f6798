"""Whether work is let onto devices: what `muster drain`, `offline` and `online` have in common."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from urllib.parse import quote

import click

from libs.cli.gateway import Json, ask
from libs.cli.many import each_of
from libs.cli.profile import read_profile
from libs.cli.terminal.gpus import print_gpus
from libs.cli.terminal.table import clean

# The states of health in which a GPU takes work (docs/gpu-life.md).
TAKES_WORK: Final = ("healthy", "degraded")

F = TypeVar("F", bound=Callable[..., object])


def devices(verb: F) -> F:
    """The arguments NODE... and --gpu-id."""
    option = click.option(
        "--gpu-id",
        "uuids",
        multiple=True,
        metavar="UUID",
        help="This GPU alone (can be given again).",
    )
    return click.argument("nodes", nargs=-1, metavar="[NODE...]")(option(verb))


def set_service(
    service: str, nodes: Sequence[str], uuids: Sequence[str], force: bool = False
) -> int:
    """Print what jobs still hold there, or for `online` which GPUs take work now.

    Return 0 when nothing was refused.
    """
    paths = [f"/v1/nodes/{quote(name, safe='')}/service" for name in nodes] + [
        f"/v1/gpus/{quote(uuid, safe='')}/service" for uuid in uuids
    ]
    if not paths:
        raise click.UsageError("say which: a NODE, or --gpu-id UUID")
    profile = read_profile()
    body = {"service": service, "force": force, "user": profile.user}
    seen: list[Json] = []

    def put(path: str) -> None:
        found = ask(profile, "PUT", path, body=body)
        seen.extend(found.get("gpus", [found]))

    code = each_of(paths, put)
    if service == "online":
        _print_online(seen)
        return code
    left = [gpu for gpu in seen if gpu["holders"]]
    if left:
        print_gpus(left, wide=False, no_headers=False)
    elif seen:
        print("no job has anything of it")
    return code


def _print_online(gpus: Sequence[Json]) -> None:
    """Print one line per GPU. An unhealthy GPU can be online and still take no work."""
    for gpu in gpus:
        name = f"GPU {gpu['uuid']} of {gpu['node_id']}"
        if gpu["present"] and gpu["health"] in TAKES_WORK:
            print(clean(f"{name}: online, {str(gpu['state']).lower()}"))
        else:
            why = f" ({gpu['reason']})" if gpu["reason"] else ""
            more = f": {gpu['detail']}" if gpu["detail"] else ""
            print(
                clean(
                    f"{name}: online, but it is {gpu['health']}{why} and takes no work "
                    f"before it has recovered{more}"
                )
            )
            if gpu["verdict"] == "reboot_node":
                print(
                    clean(
                        "  once its cause is mended, reset it (muster gpu reset --gpu-id "
                        f"{gpu['uuid']}) or boot {gpu['node_id']}"
                    )
                )
