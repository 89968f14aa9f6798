"""The alerts' own tests, run by Prometheus' tool: each fires and clears, and waits its time."""

import subprocess

from tests.prometheus import binary
from tests.tidy import ROOT

FOLDER = ROOT / "deploy" / "prometheus"
ANSWER_S = 60.0


def promtool(*line: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [binary("promtool"), *line],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
        timeout=ANSWER_S,
    )


def test_every_alert_fires_and_clears_in_the_alerts_own_tests() -> None:
    done = promtool("test", "rules", "gpu-cluster-alerts.test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_have_no_fault_that_prometheus_sees() -> None:
    done = promtool("check", "rules", "gpu-cluster-alerts.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "23 rules found" in done.stdout
