"""Whether work is let onto devices: what `muster drain`, `offline` and `online` have in common."""

from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import quote

import click

from libs.cli.gateway import Json, ask
from libs.cli.gpus import print_gpus
from libs.cli.many import each_of
from libs.cli.profile import read_profile

F = TypeVar("F", bound=Callable[..., object])


def devices(verb: F) -> F:
    """The arguments NODE... and --gpu-id."""
    option = click.option("--gpu-id", "uuids", multiple=True, metavar="UUID", help="This GPU alone (can be given again).")
    return click.argument("nodes", nargs=-1, metavar="[NODE...]")(option(verb))


def set_service(service: str, nodes: Sequence[str], uuids: Sequence[str], force: bool = False) -> int:
    """Says what is left there of jobs. The exit code: 0 when nothing was refused."""
    paths = [f"/v1/nodes/{quote(name, safe='')}/service" for name in nodes] + [f"/v1/gpus/{quote(uuid, safe='')}/service" for uuid in uuids]
    if not paths:
        raise click.UsageError("say which: a NODE, or --gpu-id UUID")
    profile = read_profile()
    body = {"service": service, "force": force, "user": profile.user}
    seen: list[Json] = []

    def put(path: str) -> None:
        found = ask(profile, "PUT", path, body=body)
        seen.extend(found.get("gpus", [found]))

    code = each_of(paths, put)
    left = [gpu for gpu in seen if gpu["holders"]]
    if left and service != "online":
        print_gpus(left, wide=False, no_headers=False)
    elif seen and service != "online":
        print("no job has anything of it")
    return code
