"""Every alert is in the alerts' own tests, which Prometheus' tool runs where it is installed."""

import yaml

from tests.tidy import ROOT

FOLDER = ROOT / "deploy" / "prometheus"


def test_every_alert_has_a_case() -> None:
    rules = yaml.safe_load((FOLDER / "gpu-cluster-alerts.yaml").read_text())
    cases = (FOLDER / "gpu-cluster-alerts.test.yaml").read_text()
    names = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert [name for name in names if f'alertname="{name}"' not in cases] == []
