"""`muster memory`."""

from typing import Final

import click

from libs.cli.faults import Declined
from libs.cli.flags.sizes import show_size
from libs.cli.gateway import Json, ask_all
from libs.cli.terminal.output import listed, print_table, print_value
from libs.cli.terminal.table import Column, clean, natural
from libs.client.profile import Profile, read_profile

NOT_FOUND: Final = 404
COLUMNS: Final = (
    Column("NODE"),
    Column("DEVICE", flexible=True),
    Column("JOB"),
    Column("TENANT"),
    Column("POOL", right=True),
    Column("GRANTED", right=True),
    Column("PURPOSES", flexible=True),
)


@click.command(short_help="Show the memory pools of jobs, by node and device.")
@click.argument("name", required=False, metavar="[NODE|JOB]")
@listed
def command(name: str | None, form: str, no_headers: bool) -> None:
    """Show the memory pools of jobs, by node and device.

    POOL is what a job reserved, GRANTED what its processes have now. The row of a device has the
    sums of all tenants. The number after the slash is the device's whole memory.

    \b
    muster memory
    muster memory node-3
    muster memory train
    muster memory -o json | jq '.[] | .pools[] | {job_id, purposes}'
    """
    nodes = _asked(read_profile(), name)
    if print_value(nodes, form):
        return
    nodes.sort(key=lambda node: natural(node["node_id"]))
    rows = [row for node in nodes for row in _rows(node)]
    print_table(COLUMNS, rows, not no_headers, form == "wide")
    for node in nodes:
        if node["error"]:
            print(f"\n{node['node_id']}: {clean(node['error'])}")


def _asked(profile: Profile, name: str | None) -> list[Json]:
    """Return the nodes of the answer. A name is that of a node, or else of a job."""
    if name is None:
        return ask_all(profile, "/v1/memory", "nodes")
    try:
        return ask_all(profile, "/v1/memory", "nodes", {"node": name})
    except Declined as error:
        if error.status != NOT_FOUND:
            raise
        return ask_all(profile, "/v1/memory", "nodes", {"job": name})


def _rows(node: Json) -> list[list[str]]:
    rows = [_device(node, device) for device in node["devices"] if _is_used(node, device)]
    rows += [_pool(node, pool) for pool in node["pools"]]
    others = node["other_tenants"]
    if others["jobs"]:
        rows.append(
            [
                node["node_id"],
                "",
                str(others["jobs"]),
                "other tenants",
                show_size(others["pool_bytes"]),
                _granted(others["granted_bytes"]),
                "",
            ]
        )
    return rows


def _is_used(node: Json, device: Json) -> bool:
    return bool(device["pool_bytes"] or device["unusable"])


def _device(node: Json, device: Json) -> list[str]:
    pools = f"{show_size(device['pool_bytes'])}/{show_size(device['capacity_bytes'])}"
    granted = _granted(device["granted_bytes"])
    return [node["node_id"], device["device"], "", "", pools, granted, device["unusable"]]


def _pool(node: Json, pool: Json) -> list[str]:
    purposes = [f"{name or '-'} {show_size(size)}" for name, size in pool["purposes"].items()]
    return [
        node["node_id"],
        pool["device"],
        pool["job_id"],
        pool["tenant"],
        show_size(pool["pool_bytes"]),
        _granted(pool["granted_bytes"]),
        ", ".join(purposes),
    ]


def _granted(size: int | None) -> str:
    return "?" if size is None else show_size(size)
