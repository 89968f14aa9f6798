"""The catalogue of metrics is what the code exports, and every name carries its unit."""

import re

from tests.metrics_catalogue import FILE, catalogue, exported, node_text, written

NAME = re.compile(r"(muster|DCGM)_\w+")


def test_the_catalogue_is_what_the_code_exports_now() -> None:
    assert FILE.read_text() == written(catalogue()), "`make generate` writes it"


def test_no_name_is_used_twice_and_each_has_a_meaning() -> None:
    rows = catalogue()
    names = [row["name"] for row in rows]
    assert len(names) == len(dict.fromkeys(names))
    assert [row["name"] for row in rows if not row["help"] or not NAME.fullmatch(row["name"])] == []


def test_a_counter_is_named_as_one() -> None:
    ours = [row for row in catalogue() if row["name"].startswith("muster_")]
    assert [
        row["name"] for row in ours if (row["kind"] == "counter") != row["name"].endswith("_total")
    ] == []


def test_no_metric_carries_a_label_without_a_bound() -> None:
    """Ids of requests, paths and texts of errors would make series without end."""
    unbounded = ("path", "request", "trace_id", "message", "text", "url")
    assert [
        row["name"] for row in catalogue() if any(label in unbounded for label in row["labels"])
    ] == []


def test_a_text_of_a_node_is_read_whole() -> None:
    rows = {row["name"]: row for row in exported(node_text(), "node")}
    assert rows["muster_node_disk_bytes"]["labels"] == ["Hostname"]
    assert rows["muster_gpu_energy_joules_total"]["kind"] == "counter"
