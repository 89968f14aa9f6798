"""The panels of the board by row.

Pure. `board.py` makes Grafana's JSON of them. Every gateway shows the same cluster, so queries over
gateways take the maximum. Prometheus runs every query in tests/integration/test_board_queries.py.
"""

from typing import Final

from libs.monitoring.control_panels import LOG, TENANTS
from libs.monitoring.fleet_panels import FLEET, PROFILING
from libs.monitoring.panel import Panel
from libs.monitoring.work_panels import JOBS, SERVING

ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Fleet": FLEET,
    "Profiling counters of devices": PROFILING,
    "Jobs": JOBS,
    "Serving": SERVING,
    "Log and control plane": LOG,
    "Tenants": TENANTS,
}
