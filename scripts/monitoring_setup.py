"""Installs the board and the alerts of a cluster into an existing Grafana and Prometheus.

    scripts/monitoring_setup.py scrape --gateway gateway:8080 --node gpu-1:9460
    scripts/monitoring_setup.py rules --into /etc/prometheus/rules
    scripts/monitoring_setup.py board --into /var/lib/grafana/dashboards
    GRAFANA_TOKEN=... scripts/monitoring_setup.py board --grafana https://grafana.example
    scripts/monitoring_setup.py check --prometheus http://127.0.0.1:9090

The work is in `libs/monitoring/setup`. docs/monitoring.md describes it.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from libs.monitoring.setup.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
