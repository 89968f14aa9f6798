"""`muster fabric`: show the measured links between nodes, or measure them."""

import time
from typing import Final
from urllib.parse import quote

import click

from libs.cli.gateway import Json, ask
from libs.cli.terminal.output import formatted, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile

NODES: Final = (
    Column("NODE"),
    Column("MBIT/S", right=True),
    Column("USUAL", right=True),
    Column("RACK"),
    Column("SUSPECT", flexible=True),
)
LINKS: Final = (Column("SUSPECT LINK"), Column("MBIT/S", right=True), Column("OF USUAL"))
# A matrix of more nodes does not fit a terminal; -o json has every pair.
MATRIX_MAX: Final = 32
POLL_S: Final = 0.5
OVER: Final = ("done", "failed")


@click.group(invoke_without_command=True, short_help="Show or measure the links between nodes.")
@formatted
@click.pass_context
def command(context: click.Context, form: str) -> None:
    """Show or measure the links between nodes.

    The tables show the bandwidth between nodes, the nodes and links that are slower than expected
    (suspects), and groups of nodes with fast links between them (measured racks).

    \b
    muster fabric
    muster fabric test --wait
    muster fabric test node-1 node-2 node-3
    """
    if context.invoked_subcommand is None:
        shown = ask(read_profile(), "GET", "/v1/fabric")
        if not print_value(shown, form):
            show(shown)


@command.command("test")
@click.argument("nodes", nargs=-1, metavar="[NODES]...")
@click.option("--wait", is_flag=True, help="Wait for the result and print it.")
@formatted
def test_fabric(nodes: tuple[str, ...], wait: bool, form: str) -> int:
    """Measure the links between NODES, or between all idle nodes.

    The test does not measure nodes that run jobs. With --wait, the command exits with 1 if the test
    fails or finds a slow node or link.

    \b
    muster fabric test --wait
    muster fabric test node-1 node-2 node-3
    """
    profile = read_profile()
    test = ask(profile, "POST", "/v1/fabric/tests", body={"nodes": list(nodes)})
    path = f"/v1/fabric/tests/{quote(str(test['id']), safe='')}"
    while wait and test["state"] not in OVER:
        time.sleep(POLL_S)
        test = ask(profile, "GET", path)
    if not wait:
        if not print_value(test, form):
            print(test["id"])
        return 0
    fabric = ask(profile, "GET", "/v1/fabric")
    if not print_value({"test": test, "fabric": fabric}, form):
        _print_test(test)
        show(fabric)
    return int(test["state"] == "failed" or bool(_suspects(fabric, test["nodes"])))


def _suspects(fabric: Json, nodes: list[str]) -> list[str]:
    """Return the suspects among these nodes, in words."""
    slow = [each["node"] for each in fabric["nodes"] if each["suspect"] and each["node"] in nodes]
    links = [link for link in fabric["links"] if link["a"] in nodes and link["b"] in nodes]
    return [*slow, *(f"{link['a']} - {link['b']}" for link in links)]


def _print_test(test: Json) -> None:
    print(
        f"{test['id']}: {test['state']}, {test['pairs']} probes of {len(test['nodes'])} nodes "
        f"in {test['rounds']} rounds" + (f": {test['detail']}" if test["detail"] else "")
    )
    for words in test["left_out"]:
        print(f"left out: {words}")
    print()


def show(fabric: Json) -> None:
    """Print nodes, matrix, suspect links and racks."""
    if not fabric["nodes"]:
        print("nothing is measured yet: muster fabric test --wait")
        return
    print_table(NODES, [_node(each) for each in fabric["nodes"]])
    _print_matrix(fabric)
    if fabric["links"]:
        print()
        print_table(LINKS, [_link(each) for each in fabric["links"]])
    for rack, nodes in fabric["racks"].items():
        print(f"\nrack {rack}: {', '.join(nodes)}", end="")
    print(f"\nracks measured at {fabric['racks_measured']}" if fabric["racks"] else "")


def _node(each: Json) -> list[str]:
    drained = f" (drained: {each['drained']})" if each["drained"] else ""
    suspect = str(each["suspect"] or "-") + drained
    return [
        str(each["node"]),
        mbit(each["capacity"]),
        mbit(each["usual"]),
        str(each["rack"] or "-"),
        suspect,
    ]


def _link(each: Json) -> list[str]:
    return [f"{each['a']} - {each['b']}", mbit(each["bandwidth"]), f"{each['part']:.0%}"]


def _print_matrix(fabric: Json) -> None:
    """Print Mbit/s of the worse direction of each pair; ! marks a pair whose last probe failed."""
    names = [str(each["node"]) for each in fabric["nodes"]]
    if len(names) > MATRIX_MAX:
        print(f"\n{len(fabric['pairs'])} pairs are measured: -o json shows them")
        return
    cells = {(pair["a"], pair["b"]): _cell(pair) for pair in fabric["pairs"]}
    columns = [Column("MBIT/S"), *(Column(name, right=True) for name in names)]
    rows = [
        [one, *(cells.get((one, other)) or cells.get((other, one)) or "-" for other in names)]
        for one in names
    ]
    print()
    print_table(columns, rows, wide=True)


def _cell(pair: Json) -> str:
    return mbit(min(pair["forward"], pair["backward"])) + ("!" if pair["error"] else "")


def mbit(bytes_per_s: int) -> str:
    """Return bytes per second as Mbit/s."""
    value = bytes_per_s * 8 / 1e6
    return f"{value:.1f}" if value < 1_000 else f"{value:,.0f}"
