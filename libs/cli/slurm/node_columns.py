"""The columns of sinfo: nodes in groups with equal values, as Slurm shows them.

A partition of Slurm is a queue of Muster, and every queue may use every node. Tests:
tests/unit/test_slurm_node_columns.py.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from libs.cli.slurm.columns import Field, Piece
from libs.cli.slurm.node_lists import compressed

Json = dict[str, Any]

DEFAULT_QUEUE: Final = "default"
NONE: Final = "none"
NULL: Final = "(null)"
# Slurm's states of a node: the short form by the long one.
SHORT: Final = {
    "idle": "idle", "mixed": "mix", "allocated": "alloc", "draining": "drng", "drained": "drain",
    "down*": "down*", "maint": "maint", "reserved": "resv",
}  # fmt: skip
DRAINED: Final = ("draining", "drained")


class NodeRow(NamedTuple):
    """A node, its GPUs, and its place in maintenance windows and reservations of now."""

    node: Json
    gpus: Sequence[Json]
    maintenance: bool = False
    reserved: bool = False


class Group(NamedTuple):
    """Nodes of one partition whose shown values are equal."""

    partition: str
    rows: Sequence[NodeRow]

    @property
    def first(self) -> NodeRow:
        return self.rows[0]


def state_of(row: NodeRow) -> str:
    """Return Slurm's state of a node, in its long form."""
    node = row.node
    if node["state"] == "unreachable":
        return "down*"
    busy = bool(node.get("job_ids")) or bool(node.get("held_share"))
    if _out_of_service(row):
        return "draining" if busy else "drained"
    if row.maintenance:
        return "maint"
    if not busy:
        return "reserved" if row.reserved else "idle"
    full = not node.get("gpus_free") and bool(node.get("gpus_total"))
    return "allocated" if full else "mixed"


def _out_of_service(row: NodeRow) -> bool:
    present = [gpu for gpu in row.gpus if gpu.get("present")]
    withheld = bool(present) and all(gpu.get("service") != "online" for gpu in present)
    return withheld or any(row.node.get(name) for name in ("revoked", "distrusted", "withheld"))


def reason_of(row: NodeRow) -> str:
    """Return why a node takes no jobs."""
    node = row.node
    words = (node.get(name) for name in ("revoked", "distrusted", "withheld", "reason"))
    found = next(filter(None, words), "")
    if found:
        return str(found)
    return "taken out of service" if _out_of_service(row) else NONE


def gres_of(row: NodeRow) -> str:
    """Return the GPUs as Slurm writes them: `gpu:H100:8`."""
    total = row.node.get("gpus_total") or 0
    model = str(row.node.get("gpu_model") or "").replace(" ", "_")
    return f"gpu:{model}:{total}" if total and model else f"gpu:{total}" if total else NULL


def _used(row: NodeRow) -> str:
    return f"gpu:{int(row.node.get('held_share') or 0) / 100:g}"


def _cpus(row: NodeRow) -> int:
    return int(row.node.get("cpus_milli") or 0) // 1_000


def cpu_states(group: Group) -> str:
    """Return the CPUs of a group as allocated/idle/other/total."""
    total = sum(_cpus(row) for row in group.rows)
    held = sum(-(-int(row.node.get("cpus_milli_held") or 0) // 1_000) for row in group.rows)
    away = sum(_cpus(row) for row in group.rows if state_of(row) in ("down*", *DRAINED, "maint"))
    return f"{held}/{max(0, total - held - away)}/{away}/{total}"


def node_states(group: Group) -> str:
    """Return the nodes of a group as allocated/idle/other/total."""
    states = [state_of(row) for row in group.rows]
    busy = sum(state in ("allocated", "mixed") for state in states)
    idle = states.count("idle")
    return f"{busy}/{idle}/{len(states) - busy - idle}/{len(states)}"


def _labels(row: NodeRow) -> str:
    labels = row.node.get("labels") or {}
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items())) or NULL


def _first(of: Callable[[NodeRow], str]) -> Callable[[Group], str]:
    return lambda group: of(group.first)


def _partition(group: Group) -> str:
    return group.partition + ("*" if group.partition == DEFAULT_QUEUE else "")


def _names(group: Group) -> str:
    return compressed(str(row.node["id"]) for row in group.rows)


FIELDS: Final[dict[str, Field[Group]]] = {
    "partition": Field("PARTITION", _partition),
    "partitionname": Field("PARTITION", lambda group: group.partition),
    "available": Field("AVAIL", lambda _: "up"),
    "time": Field("TIMELIMIT", lambda _: "infinite"),
    "nodes": Field("NODES", lambda group: str(len(group.rows))),
    "nodeai": Field("NODES(A/I)", lambda group: "/".join(node_states(group).split("/")[:2])),
    "nodeaiot": Field("NODES(A/I/O/T)", node_states),
    "statecompact": Field("STATE", _first(lambda row: SHORT[state_of(row)])),
    "statelong": Field("STATE", _first(state_of)),
    "nodelist": Field("NODELIST", _names),
    "nodehost": Field("HOSTNAMES", lambda group: str(group.first.node["id"])),
    "gres": Field("GRES", _first(gres_of)),
    "gresused": Field("GRES_USED", _first(_used)),
    "cpus": Field("CPUS", _first(lambda row: str(_cpus(row)))),
    "cpusstate": Field("CPUS(A/I/O/T)", cpu_states),
    "memory": Field(
        "MEMORY", _first(lambda row: str(int(row.node.get("memory_bytes") or 0) >> 20))
    ),
    "features": Field("AVAIL_FEATURES", _first(_labels)),
    "reason": Field("REASON", _first(reason_of)),
    "user": Field("USER", lambda _: "Unknown"),
    "timestamp": Field("TIMESTAMP", lambda _: "Unknown"),
    "nodeaddr": Field("NODE_ADDR", _first(lambda row: str(row.node.get("address") or "-"))),
    "version": Field("VERSION", _first(lambda row: str(row.node.get("version") or "-"))),
    "weight": Field("WEIGHT", lambda _: "1"),
}
LETTERS: Final = {
    "P": "partition", "R": "partitionname", "a": "available", "l": "time", "D": "nodes",
    "A": "nodeai", "F": "nodeaiot", "t": "statecompact", "T": "statelong", "N": "nodelist",
    "n": "nodehost", "G": "gres", "c": "cpus", "C": "cpusstate", "m": "memory", "f": "features",
    "b": "features", "E": "reason", "H": "timestamp", "u": "user", "U": "user", "o": "nodeaddr",
    "v": "version", "w": "weight",
}  # fmt: skip
# Fields whose value is about the whole group: nodes that differ in them stay in one group.
OF_GROUPS: Final = ("nodes", "nodeai", "nodeaiot", "nodelist", "cpusstate")

DEFAULT: Final = "%#P %.5a %.10l %.6D %.6t %N"
BY_NODE: Final = "%#N %.6D %#P %6t "
SUMMARY: Final = "%#P %.5a %.10l %.16F %N"
REASONS: Final = "%20E %9u %19H %N"


def groups(
    partitions: Sequence[str], rows: Sequence[NodeRow], pieces: Sequence[Piece], by_node: bool
) -> list[Group]:
    """Return one group for nodes with equal values of the shown fields; by node, one for each."""
    found: list[Group] = []
    for partition in partitions:
        if by_node:
            found += [Group(partition, [row]) for row in rows]
            continue
        shown = [piece.field for piece in pieces if piece.field and piece.field not in OF_GROUPS]
        equal: dict[tuple[str, ...], list[NodeRow]] = {}
        for row in rows:
            alone = Group(partition, [row])
            equal.setdefault(tuple(FIELDS[name].of(alone) for name in shown), []).append(row)
        found += [Group(partition, each) for each in equal.values()]
    return found
