"""docs/reference/metrics.md: every metric, from libs/docs/metrics.json.

`python -m tests.metrics_catalogue` reads that file from the code that exports the metrics, so a
metric without a row fails a test.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from libs.docs.markdown import code, page, table

FILE: Final = Path(__file__).parent / "metrics.json"
HEAD: Final = ("metric", "kind", "labels", "meaning")
# The labels that every series of a device has.
DEVICE: Final = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "vendor", "Hostname")
# Labels of the readings of a device that one job has alone.
OF_ITS_JOB: Final = ("hpc_job", "tenant")
DCGM: Final = "DCGM_"

INTRODUCTION: Final = """
Gateways and nodes answer `GET /metrics` in Prometheus' text format. [Monitoring](../monitoring.md)
installs a board and alerts, and [Watch the devices](../howto/watch-devices.md) explains the
readings of devices. Units are in the names: `_bytes`, `_seconds`, `_ratio` (0 to 1), `_total` for
counters. A value that is not known has no series; it is never zero.
""".strip().replace("\n", " ")
GATEWAYS: Final = """
The address of each gateway, without a key. Metrics of the cluster are read from the gateway's own
state, so every gateway shows the whole cluster: take the maximum over gateways, not the sum.
Metrics of requests are those of one gateway: take the sum. Bounds: 2,048 nodes, 256 models, 64
models of GPUs and 256 processes have series of their own; the rest share one, or are only counted.
If 256 models have series, those of undeployed models are removed.
""".strip().replace("\n", " ")
OPERATORS: Final = """
The same address with the key of an operator or administrator
(`authorization: {credentials_file: ...}` of Prometheus), because they name tenants and users.
Bounds: 1,000 tenants, and 2,000 keys of tenants by model.
""".strip().replace("\n", " ")
NODES: Final = """
Port 9460 of each node, without a key, on loopback unless MUSTER_METRICS_HOST says otherwise.
""".strip()
DEVICES: Final = (
    f"A metric whose labels are written as *device* has {', '.join(map(code, DEVICE))}, and while "
    f"one job alone has the device also {' and '.join(map(code, OF_ITS_JOB))}."
)
NVIDIA: Final = """
NVIDIA's devices have some readings a second time, with the names and units of NVIDIA's
dcgm-exporter and the additional label `DCGM_FI_DRIVER_VERSION`.
""".strip().replace("\n", " ")


def metrics() -> str:
    rows: list[dict[str, Any]] = json.loads(FILE.read_text())
    nodes = [row for row in rows if row["process"] == "node"]
    return page(
        "Metrics",
        INTRODUCTION,
        "## Gateways",
        GATEWAYS,
        _table(row for row in rows if row["process"] == "gateway"),
        "## Gateways, for operators",
        OPERATORS,
        _table(row for row in rows if row["process"] == "operators"),
        "## Nodes",
        NODES,
        DEVICES,
        _table(row for row in nodes if not row["name"].startswith(DCGM)),
        "## Names of dcgm-exporter",
        NVIDIA,
        _table(row for row in nodes if row["name"].startswith(DCGM)),
    )


def _table(rows: Iterable[dict[str, Any]]) -> str:
    return table(
        HEAD, [(code(row["name"]), row["kind"], _labels(row), row["help"]) for row in rows]
    )


def _labels(row: dict[str, Any]) -> str:
    labels: list[str] = row["labels"]
    if set(DEVICE) <= set(labels):
        known = (*DEVICE, "DCGM_FI_DRIVER_VERSION")
        own = [label for label in labels if label not in known]
        is_reading = own == list(OF_ITS_JOB)
        return ", ".join(["*device*", *map(code, [] if is_reading else own)])
    return ", ".join(map(code, labels))
