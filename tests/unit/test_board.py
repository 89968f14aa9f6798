"""The board: valid for Grafana, no panel over another, no query over an undocumented metric."""

import json
import re
from itertools import pairwise
from typing import Any, Final

import yaml

from libs.monitoring.board import SOURCE, board, board_json
from libs.monitoring.panel import FULL
from libs.monitoring.panels import ROWS
from tests.metrics_catalogue import FILE
from tests.tidy import ROOT

ALERTS: Final = ROOT / "deploy" / "prometheus" / "gpu-cluster-alerts.yaml"
METRIC: Final = re.compile(r"\b(?:muster|DCGM)_\w+")
PARTS: Final = ("_bucket", "_sum", "_count")


def known() -> set[str]:
    """Return every name that a query may use."""
    found = {row["name"]: row["kind"] for row in json.loads(FILE.read_text())}
    parts = {name + part for name, kind in found.items() if kind == "histogram" for part in PARTS}
    return set(found) | parts


def panels() -> list[dict[str, Any]]:
    return [panel for panel in board()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_query_of_the_board_is_over_documented_metrics() -> None:
    used = {
        name
        for panel in panels()
        for target in panel["targets"]
        for name in METRIC.findall(target["expr"])
    }
    assert sorted(used - known()) == []


def test_every_alert_is_over_documented_metrics() -> None:
    used = {name for rule in rules() for name in METRIC.findall(rule["expr"])}
    assert sorted(used - known()) == []


def test_the_board_has_the_rows_that_operators_look_for() -> None:
    titles = [panel["title"] for panel in board()["panels"] if panel["type"] == "row"]
    assert titles == list(ROWS)
    assert {"Fleet", "Jobs", "Serving", "Log and control plane", "Tenants"} <= set(titles)


def test_panels_have_a_number_each_and_do_not_overlap() -> None:
    numbers = [panel["id"] for panel in board()["panels"]]
    assert numbers == list(range(1, len(numbers) + 1))
    cells = [
        (x, y)
        for panel in board()["panels"]
        for place in (panel["gridPos"],)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(dict.fromkeys(cells))
    assert max(x for x, _ in cells) < FULL


def test_every_panel_asks_the_chosen_prometheus() -> None:
    assert all(
        panel["datasource"] == SOURCE == target["datasource"]
        for panel in panels()
        for target in panel["targets"]
    )


def test_every_alert_says_what_is_wrong_and_links_to_its_section() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    for rule in rules():
        name = rule["alert"]
        notes = rule["annotations"]
        assert notes["summary"] and rule["labels"]["severity"] in ("info", "warning", "critical")
        assert notes["runbook_url"] == f"docs/monitoring.md#{name.lower()}"
        assert f"\n### {name}\n" in page


def test_sections_of_alerts_stand_in_their_order_and_none_is_left_over() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    found = re.findall(r"^### (Muster\w+)$", page, re.MULTILINE)
    assert found == [rule["alert"] for rule in rules()]


def test_alerts_have_a_name_each() -> None:
    names = sorted(rule["alert"] for rule in rules())
    assert all(one != other for one, other in pairwise(names))


def test_the_file_of_the_board_holds_all_of_it_and_ends_with_a_line_end() -> None:
    assert json.loads(board_json()) == board()
    assert board_json().endswith("}\n")
