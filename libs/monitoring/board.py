"""Grafana's JSON of the board, from its panels. Pure.

deploy/grafana/gpu-cluster-monitoring.json is this text (`python -m libs.docs` writes it). Tests:
tests/unit/test_board.py.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from libs.monitoring.panel import FULL, LINES, STAT, TABLE, Panel
from libs.monitoring.panels import ROWS

UID: Final = "gpu-cluster-monitoring"
TITLE: Final = "GPU cluster (Muster)"
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
HEIGHTS: Final = {STAT: 5, LINES: 8, TABLE: 8}


def board() -> dict[str, Any]:
    """Return the board. It has no `id`, so that Grafana gives it one."""
    return {
        "uid": UID,
        "title": TITLE,
        "tags": ["muster", "gpu"],
        "timezone": "browser",
        "schemaVersion": 39,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "editable": True,
        "templating": {"list": _variables()},
        "annotations": {"list": [_alerts()]},
        "panels": list(_panels()),
    }


def board_json() -> str:
    return json.dumps(board(), indent=1) + "\n"


def _variables() -> list[dict[str, Any]]:
    source = {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
    }
    return [
        source,
        _labels("node", "Node", "label_values(muster_gpu_up, Hostname)"),
        _labels("tenant", "Tenant", "label_values(muster_gpu_job_share, tenant)"),
    ]


def _labels(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "sort": 1,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _alerts() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": 'ALERTS{alertname=~"Muster.*",alertstate="firing"}',
        "titleFormat": "{{alertname}}",
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for title, panels in ROWS.items():
        number += 1
        yield _row(number, title, top)
        top, left, tallest = top + 1, 0, 0
        for panel in panels:
            if left + panel.width > FULL:
                top, left, tallest = top + tallest, 0, 0
            number += 1
            height = HEIGHTS[panel.kind]
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            yield _panel(number, panel, place)
            left, tallest = left + panel.width, max(tallest, height)
        top += tallest


def _row(number: int, title: str, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": FULL, "h": 1}
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": place,
        "panels": [],
    }


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    found = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": _options(panel.kind),
        "targets": [
            {
                "refId": chr(ord("A") + position),
                "datasource": SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "instant": panel.kind == TABLE,
                "range": panel.kind != TABLE,
                "format": "table" if panel.kind == TABLE else "time_series",
            }
            for position, query in enumerate(panel.queries)
        ],
    }
    if panel.kind == TABLE:
        hidden = {"id": "organize", "options": {"excludeByName": {"Time": True}}}
        found["transformations"] = [hidden]
    return found


def _options(kind: str) -> dict[str, Any]:
    if kind == STAT:
        return {
            "reduceOptions": {"calcs": ["lastNotNull"]},
            "colorMode": "value",
            "graphMode": "area",
        }
    if kind == LINES:
        return {"legend": {"displayMode": "list", "placement": "bottom"}}
    return {"showHeader": True}
