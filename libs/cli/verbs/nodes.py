"""`muster nodes`."""

from typing import Final
from urllib.parse import quote

import click

from libs.cli.flags.durations import age
from libs.cli.gateway import Json, ask, ask_all
from libs.cli.jobs import utc_now
from libs.cli.terminal.gpus import print_gpus
from libs.cli.terminal.output import listed, print_table, print_value
from libs.cli.terminal.table import Column, clean, natural, state_colour
from libs.client.profile import Profile, read_profile

COLUMNS: Final = (
    Column("NODE"),
    Column("STATE", colour_of=state_colour),
    Column("GPUS", right=True),
    Column("FREE", right=True),
    Column("JOBS", right=True),
    Column("MODEL", flexible=True),
    Column("ADDRESS"),
    Column("REGISTERED", right=True),
    Column("REASON", flexible=True),
)
WIDE_COLUMNS: Final = (
    *COLUMNS,
    Column("INCARNATION", right=True),
    Column("VERSION"),
    Column("SIMULATED"),
)

# Prefixes and names in NodeRegistered.isolation.
LOST: Final = "lost: "
USERS: Final = "users"
ONLY: Final = "only: "
TENANTS: Final = "tenants"
NAMED_MAX: Final = 8


@click.command(short_help="List nodes, or show one with its GPUs.")
@click.argument("name", required=False, metavar="[NODE]")
@listed
def command(name: str | None, form: str, no_headers: bool) -> None:
    """List nodes, or show one with its GPUs.

    \b
    muster nodes
    muster nodes node-3
    muster nodes -o json | jq -r '.[] | select(.state != "healthy") | .id'
    """
    profile = read_profile()
    if name is not None:
        _show(profile, name, form, no_headers)
        return
    nodes = ask_all(profile, "/v1/nodes", "nodes")
    if not print_value(nodes, form):
        nodes = sorted(nodes, key=lambda node: natural(node["id"]))
        _print(nodes, form == "wide", no_headers)
        _warn(nodes)


def _show(profile: Profile, name: str, form: str, no_headers: bool) -> None:
    """Print the answer of `GET /v1/nodes/NODE`: the node, then its GPUs."""
    answer = ask(profile, "GET", f"/v1/nodes/{quote(name, safe='')}")
    if print_value(answer, form):
        return
    node, gpus = answer["node"], answer["gpus"]
    _print([node], form == "wide", no_headers)
    if node.get("suspicion"):
        print(f"\nSuspect: {clean(node['suspicion'])}")
    if node.get("drivers"):
        print(
            "\nDrivers: "
            + ", ".join(
                f"{clean(name)} {clean(version)}" for name, version in node["drivers"].items()
            )
        )
    _print_lost(node["isolation"])
    _print_ignored(node)
    _print_contested(node)
    _print_left_out(node)
    print()
    print_gpus(gpus, form == "wide", no_headers)


def _warn(nodes: list[Json]) -> None:
    """Warn about nodes where jobs of different users are not isolated, once per reason.

    The warning goes to stderr, because scripts read the table on stdout.
    """
    by_reason: dict[str, list[str]] = {}
    for node in nodes:
        state = (node.get("isolation") or {}).get(USERS, "")
        if state.startswith(LOST):
            by_reason.setdefault(state.removeprefix(LOST), []).append(node["id"])
    for why, names in by_reason.items():
        shown = ", ".join(names[:NAMED_MAX]) + (
            f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        )
        click.echo(
            f"\nWARNING: users are not isolated from each other on {clean(shown)}: {clean(why)}",
            err=True,
        )


def _print_lost(isolation: dict[str, str]) -> None:
    """Print the kinds of isolation that the node cannot enforce, with the reasons."""
    lost = [
        (name, state.removeprefix(LOST))
        for name, state in isolation.items()
        if state.startswith(LOST)
    ]
    if lost:
        print("\nThis node cannot enforce or provide:")
    for name, why in lost:
        print(f"  {clean(name)}: {clean(why)}")
    only = isolation.get(TENANTS, "")
    if only.startswith(ONLY):
        print(f"\nThis node runs only jobs of these tenants: {clean(only.removeprefix(ONLY))}")


def _print_ignored(node: Json) -> None:
    """Print which of the node's commits readers of the log ignored, and whether it gets
    new jobs.
    """
    if node.get("ignored"):
        last = f"the last is commit {node['ignored_seq']}: {clean(node['ignored_reason'])}"
        print(f"\n{node['ignored']} messages of this node in the log were ignored; {last}")
    if node.get("revoked"):
        print(f"\nThe servers refuse the key of this node: {clean(node['revoked'])}.")
        print(
            "Find out what wrote so much: the key may be stolen. Then remove the node and "
            "add the machine under another name."
        )
    elif node.get("distrusted"):
        print(
            "The node gets no new jobs until its agent restarts. If it happens again, the "
            "key may be stolen: remove the node"
        )
        print("and add the machine under another name.")


def _print_contested(node: Json) -> None:
    """Print which GPUs another node registers too, and what the administrator must do."""
    for uuid, claim in (node.get("contested") or {}).items():
        owner, others, name = (
            clean(claim["node_id"]),
            clean(", ".join(claim["others"])),
            clean(uuid),
        )
        if owner == node["id"]:
            print(
                f"\n{others} registers {name} too. The GPU stays with this node as long "
                "as a driver "
                "of this node shows it."
            )
            print(
                "If the GPU is not in this machine, start the agent with MUSTER_GPUS_REMOVED set "
                "to its UUID. If it is, remove the other node."
            )
        else:
            print(
                f"\n{name} belongs to {owner}: "
                + (
                    "that node registered it first."
                    if claim["shown"]
                    else "no driver of this node shows it."
                )
            )
            print(
                f"If the GPU is in this machine, remove the other node: muster node remove {owner}"
            )
            print("If it is not, start this agent with MUSTER_GPUS_REMOVED set to its UUID.")


def _print_left_out(node: Json) -> None:
    """Print which parts of the node's registration readers ignore."""
    if node.get("gpus_ignored"):
        print(
            f"\n{node['gpus_ignored']} GPUs of this node are ignored: the node has registered more "
            "UUIDs than one node may."
        )
        print("Remove the node and add the machine under another name.")
    for words in node.get("left_out") or ():
        print(f"\nThe agent left out {clean(words)}.")


def _print(nodes: list[Json], wide: bool, no_headers: bool) -> None:
    print_table(
        WIDE_COLUMNS if wide else COLUMNS,
        [_row(node, wide) for node in nodes],
        not no_headers,
        wide,
    )


def _row(node: Json, wide: bool) -> list[str]:
    cells = [
        str(node.get("id")),
        str(node.get("state")),
        str(node.get("gpus_total", "-")),
        str(node.get("gpus_free", "-")),
        str(len(node.get("job_ids") or ())),
        str(node.get("gpu_model") or "-"),
        str(node.get("address") or "-"),
        age(node.get("registered_at"), utc_now()),
        str(node.get("reason") or node.get("withheld") or ""),
    ]
    more = [
        str(node.get("incarnation", "-")),
        str(node.get("version") or "-"),
        "yes" if node.get("simulated") else "no",
    ]
    return cells + more if wide else cells
