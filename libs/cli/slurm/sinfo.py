"""sinfo: list nodes by partition and state."""

import os
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from libs.cli.gateway import ask_all
from libs.cli.slurm.columns import Piece, lines, named, percent
from libs.cli.slurm.node_columns import (
    BY_NODE,
    DEFAULT,
    DEFAULT_QUEUE,
    DRAINED,
    FIELDS,
    LETTERS,
    REASONS,
    SHORT,
    SUMMARY,
    NodeRow,
    groups,
    state_of,
)
from libs.cli.slurm.options import NONE, Given, Option, Table, parse
from libs.cli.slurm.requests import nodes_of
from libs.cli.terminal.table import natural
from libs.client.profile import Profile, read_profile
from libs.common.errors import Refused

Json = dict[str, Any]

PROGRAM: Final = "sinfo"
OPTIONS: Final = (
    Option("Node", "N", NONE), Option("format", "o"), Option("Format", "O"),
    Option("noheader", "h", NONE), Option("nodes", "n"), Option("partition", "p"),
    Option("states", "t"), Option("summarize", "s", NONE), Option("list-reasons", "R", NONE),
    Option("exact", "e", NONE), Option("all", "a", NONE), Option("responding", "r", NONE),
    Option("dead", "d", NONE), Option("hide", "", NONE), Option("sort", "S"),
    Option("verbose", "v", NONE),
)  # fmt: skip
REFUSED: Final = {
    "iterate": "use watch -n SECONDS sinfo, or muster top",
    "long": "use -o '%#P %.5a %.10l %.6D %.11T %N'",
    "json": "use muster nodes -o json",
    "yaml": "use muster nodes -o yaml",
    "reservation": "use muster reservations",
    "clusters": "choose the cluster with MUSTER_URL or muster login",
    "future": "nodes join with muster node add; none is known before",
}
LETTERS_REFUSED: Final = {
    "i": "iterate",
    "l": "long",
    "M": "clusters",
    "T": "reservation",
    "F": "future",
}
TABLE: Final = Table(PROGRAM, OPTIONS, REFUSED, LETTERS_REFUSED)


def main(words: Sequence[str]) -> int:
    given = parse(TABLE, words)
    pieces = pieces_of(given)
    profile = read_profile()
    partitions = _partitions(profile, given)
    rows = [row for row in node_rows(profile) if wanted(row, given)]
    # With -N, a node of several partitions has one row in each, as in Slurm.
    found = groups(partitions, rows, pieces, by_node=given.has("Node"))
    for line in lines(pieces, FIELDS, found, not given.has("noheader")):
        print(line)
    return 0


def pieces_of(given: Given) -> list[Piece]:
    """Return the format: -O, -o, SINFO_FORMAT, or the default of the chosen form."""
    if names := given.last("Format"):
        return named(names, tuple(FIELDS))
    chosen = (
        REASONS
        if given.has("list-reasons")
        else SUMMARY
        if given.has("summarize")
        else BY_NODE
        if given.has("Node")
        else os.environ.get("SINFO_FORMAT") or DEFAULT
    )
    return percent(given.last("format") or chosen, LETTERS)


def _partitions(profile: Profile, given: Given) -> list[str]:
    names = [str(queue["name"]) for queue in ask_all(profile, "/v1/queues", "queues")]
    names = sorted(names, key=lambda name: (name != DEFAULT_QUEUE, name))
    wanted_names = given.listed("partition")
    return [name for name in names if not wanted_names or name in wanted_names]


def node_rows(profile: Profile) -> list[NodeRow]:
    """Return all nodes with their GPUs and what is reserved on them now."""
    gpus: dict[str, list[Json]] = defaultdict(list)
    for gpu in ask_all(profile, "/v1/gpus", "gpus"):
        gpus[str(gpu["node_id"])].append(gpu)
    nodes = ask_all(profile, "/v1/nodes", "nodes")
    kept = [each for each in ask_all(profile, "/v1/reservations", "reservations") if _now(each)]
    maintained = {name for each in kept if each["maintenance"] for name in each["nodes"]}
    reserved = {name for each in kept if not each["maintenance"] for name in each["nodes"]}
    return [
        NodeRow(node, gpus[str(node["id"])], node["id"] in maintained, node["id"] in reserved)
        for node in sorted(nodes, key=lambda node: natural(str(node["id"])))
    ]


def _now(window: Json) -> bool:
    start, end = (datetime.fromisoformat(window[name]) for name in ("start", "end"))
    return start <= datetime.now(UTC) < end


def wanted(row: NodeRow, given: Given) -> bool:
    """Return whether the filters let the node through. Raises Refused for an unknown state."""
    nodes = nodes_of("nodes", given.last("nodes"))
    state = state_of(row)
    states = [word.lower() for word in given.listed("states")]
    for word in states:
        if word not in ("all", "down", "drain", "resv", "mix", "alloc", *SHORT, *SHORT.values()):
            known = ", ".join(each.removesuffix("*") for each in SHORT)
            raise Refused(f"--states={word}: use {known}")
    return (
        (not nodes or row.node["id"] in nodes)
        and (not states or bool({"all", *_names(state)} & set(states)))
        and not (given.has("responding") and state == "down*")
        and not (given.has("dead") and state != "down*")
        and not (given.has("list-reasons") and state not in ("down*", *DRAINED))
    )


def _names(state: str) -> tuple[str, ...]:
    """Return the words that select a state in -t."""
    both = (state, SHORT[state], state.removesuffix("*"))
    return (*both, "drain") if state in DRAINED else both
