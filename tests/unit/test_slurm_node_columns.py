"""The columns and groups of sinfo, from nodes of the gateway."""

from typing import Any

import pytest

from libs.cli.slurm.columns import lines, percent
from libs.cli.slurm.node_columns import (
    BY_NODE,
    DEFAULT,
    FIELDS,
    LETTERS,
    REASONS,
    SHORT,
    SUMMARY,
    Group,
    NodeRow,
    groups,
    reason_of,
    state_of,
)
from libs.cli.slurm.scontrol import node_lines

GPU = {"present": True, "service": "online"}
AWAY = {"present": True, "service": "draining"}


def node(
    name: str = "node-1", gpus: tuple[dict[str, Any], ...] = (GPU,), **changes: Any
) -> NodeRow:
    shown: dict[str, Any] = {
        "id": name, "state": "healthy", "reason": "", "job_ids": [], "held_share": 0,
        "gpus_total": 8, "gpus_free": 8, "gpu_model": "NVIDIA H100", "cpus_milli": 64_000,
        "cpus_milli_held": 0, "memory_bytes": 1 << 40, "memory_bytes_held": 0, "labels": {},
        "address": "10.0.0.1", "version": "0.1.0", "revoked": "", "distrusted": "",
    }  # fmt: skip
    return NodeRow(shown | changes, gpus)


BUSY = {"job_ids": ["ja"], "held_share": 100}


@pytest.mark.parametrize(
    ("row", "state"),
    [
        (node(), "idle"),
        (node(**BUSY), "mixed"),
        (node(**BUSY, gpus_free=0), "allocated"),
        (node(**BUSY, gpus_free=0, gpus_total=0), "mixed"),
        (node(state="unreachable"), "down*"),
        (node(gpus=(AWAY, AWAY)), "drained"),
        (node(gpus=(AWAY,), **BUSY), "draining"),
        (node(gpus=(GPU, AWAY)), "idle"),
        (node(gpus=()), "idle"),
        (node(distrusted="it wrote nonsense"), "drained"),
        (node()._replace(maintenance=True), "maint"),
        (node()._replace(reserved=True), "reserved"),
        (node(**BUSY)._replace(reserved=True), "mixed"),
    ],
)
def test_each_node_has_a_state_of_slurm(row: NodeRow, state: str) -> None:
    assert state_of(row) == state and state in SHORT


def test_a_node_that_takes_no_jobs_says_why() -> None:
    assert reason_of(node()) == "none"
    assert reason_of(node(gpus=(AWAY,))) == "taken out of service"
    assert reason_of(node(state="unreachable", reason="silent")) == "silent"


def test_nodes_in_one_state_are_one_line() -> None:
    rows = [node("node-1"), node("node-2"), node("node-3", **BUSY), node("node-4")]
    pieces = percent(DEFAULT, LETTERS)
    assert lines(pieces, FIELDS, groups(["default", "night"], rows, pieces, by_node=False)) == [
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST",
        "default*     up   infinite      3   idle node-[1-2,4]",
        "default*     up   infinite      1    mix node-3",
        "night        up   infinite      3   idle node-[1-2,4]",
        "night        up   infinite      1    mix node-3",
    ]


def test_each_node_may_be_a_line() -> None:
    rows = [node("node-1"), node("node-2", **BUSY)]
    pieces = percent(BY_NODE, LETTERS)
    shown = lines(pieces, FIELDS, groups(["default"], rows, pieces, by_node=True))
    assert [line.split() for line in shown] == [
        ["NODELIST", "NODES", "PARTITION", "STATE"],
        ["node-1", "1", "default*", "idle"],
        ["node-2", "1", "default*", "mix"],
    ]


def test_groups_count_their_nodes_and_cpus() -> None:
    group = Group(
        "default", [node("a", **BUSY, cpus_milli_held=1_500), node("b"), node("c", (AWAY,))]
    )
    assert FIELDS["nodeaiot"].of(group) == "1/1/1/3"
    assert FIELDS["nodeai"].of(group) == "1/1"
    assert FIELDS["cpusstate"].of(group) == "2/126/64/192"


def test_every_letter_and_default_names_a_column() -> None:
    assert set(LETTERS.values()) <= set(FIELDS)
    for text in (SUMMARY, REASONS):
        assert percent(text, LETTERS)


def test_every_column_has_a_value() -> None:
    for row in (
        node(),
        node(gpus_total=0, gpu_model="", address="", version="", labels={"a": "b"}),
    ):
        for field in FIELDS.values():
            assert isinstance(field.of(Group("night", [row])), str)
        assert all("=" in line for line in node_lines(row))
