"""`muster topo`: show the links between GPUs and network cards of a node."""

from typing import Final
from urllib.parse import quote

import click

from libs.cli.gateway import Json, ask
from libs.cli.terminal.output import formatted, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile

LEGEND: Final = """
  X     the same device
  NV#   a bonded set of # NVLinks
  XGMI  direct AMD links
  PIX   at most one PCIe switch
  PXB   several PCIe switches, no host bridge
  PHB   a PCIe host bridge
  NODE  several host bridges within one NUMA node
  SYS   different NUMA nodes
  ?     unknown"""


@click.command(short_help="Show the links between the GPUs and network cards of a node.")
@click.argument("node", metavar="NODE")
@formatted
def command(node: str, form: str) -> None:
    """Show the links between the GPUs and network cards of a node, and its RDMA ports.

    The first table has the form of nvidia-smi topo -m. The last one lists the links that the node
    has opened to other nodes: RDMA or TCP, and why. The node's agent must run.

    \b
    muster topo node-3
    muster topo node-3 -o json | jq '.spots[] | {name, nearest}'
    """
    answer = ask(read_profile(), "GET", f"/v1/nodes/{quote(node, safe='')}/topology")
    if print_value(answer, form):
        return
    spots = answer["spots"]
    columns = [
        Column(""),
        *(Column(str(spot["name"])) for spot in spots),
        Column("CPU AFFINITY"),
        Column("NUMA"),
        Column("DEVICE"),
    ]
    print_table(
        columns,
        [_row(spot, path) for spot, path in zip(spots, answer["paths"], strict=True)],
        wide=True,
    )
    print(LEGEND)
    _print_rdma(answer.get("rdma", []), str(answer.get("no_verbs", "")))
    _print_links(ask(read_profile(), "GET", f"/v1/nodes/{quote(node, safe='')}").get("links", []))
    if answer["simulated"]:
        print("\nThe devices and their links are simulated.")


def _print_rdma(ports: list[Json], no_verbs: str) -> None:
    """Print the RDMA ports, and the counters that are not zero or not known."""
    if ports:
        print("\nRDMA ports:")
        heads = ("DEVICE", "PORT", "STATE", "RATE", "LAYER", "GID", "COUNTERS")
        rows = [[str(port["device"]), str(port["port"]), *_port(port)] for port in ports]
        print_table([Column(head) for head in heads], rows, wide=True)
    if no_verbs:
        why = no_verbs.removeprefix("no RDMA: ")
        print(f"\nPrograms use TCP between nodes, not RDMA: {why}.")


def _print_links(links: list[Json]) -> None:
    """Print the links that the node has opened to other nodes."""
    if links:
        print("\nLinks to other nodes:")
        rows = [[str(link[name]) for name in ("node_id", "transport", "why")] for link in links]
        print_table([Column(head) for head in ("NODE", "TRANSPORT", "WHY")], rows, wide=True)


def _port(port: Json) -> list[str]:
    counted = [f"{name}={count}" for name, count in sorted(port["counters"].items()) if count]
    unknown = [f"{name}=?" for name in port["unknown"]]
    texts = [str(port[name] or "?") for name in ("state", "rate", "layer", "gid")]
    return [*texts, " ".join(counted + unknown) or "-"]


def _row(spot: Json, path: list[str]) -> list[str]:
    numa = str(spot["numa"]) if spot["numa"] >= 0 else "?"
    near = f" (nearest: {', '.join(spot['nearest'])})" if spot["nearest"] else ""
    return [
        str(spot["name"]),
        *path,
        str(spot["cpus"] or "?"),
        numa,
        f"{spot['device']} {spot['pci_bus']}{near}",
    ]
