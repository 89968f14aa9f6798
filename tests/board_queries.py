"""The queries of the board as Prometheus takes them, with Grafana's variables replaced."""

import json
from typing import Final

from tests.tidy import ROOT

BOARD: Final = ROOT / "deploy" / "grafana" / "gpu-cluster-monitoring.json"
# What Grafana puts in the place of its variables when all nodes and tenants are chosen.
VARIABLES: Final = {"$node": ".*", "$tenant": ".*", "$__rate_interval": "10s"}


def queries() -> dict[str, str]:
    """Return all queries by row, panel and letter, from the file that Grafana gets."""
    found: dict[str, str] = {}
    row = ""
    for panel in json.loads(BOARD.read_text())["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            continue
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            found[f"{row}: {panel['title']} {target['refId']}"] = expression
    return found
