"""`python -m tests.metrics_catalogue`: write libs/docs/metrics.json, all metrics of all processes.

They are read from the code that exports them; docs/reference/metrics.md is made of the file. Test:
tests/unit/test_metrics_catalogue.py.
"""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from msgspec.structs import fields
from prometheus_client import CollectorRegistry

from libs.common.devices.topology import RdmaPort
from libs.common.messages.memory_messages import DeviceMemory, MemoryReport, UsedMemory
from libs.common.model import Gpu, GpuId, JobId
from services.api_gateway.metrics import declared
from services.api_gateway.telemetry import Telemetry
from services.node_agent.drivers.readings import LinkErrors, Process, Sample
from services.node_agent.links.report import link_metrics
from services.node_agent.memory.report import metrics as memory_metrics
from services.node_agent.memory.report import weights_metrics
from services.node_agent.metrics.exposition import Health, JobShare, text
from services.node_agent.metrics.machine_lines import disk_lines
from services.node_agent.watchdog.beats import Beat, beat_metrics
from tests.tidy import ROOT

FILE: Final = ROOT / "libs" / "docs" / "metrics.json"
GATEWAY, OPERATORS, NODE = "gateway", "operators", "node"
CARD: Final = Gpu(
    uuid=GpuId("GPU-1"),
    index=0,
    vendor="nvidia",
    model="H100",
    memory_bytes=80 << 30,
    pci_bus="0000:01:00.0",
)
OTHER_READINGS: Final = ("pci_bus", "simulated", "throttled", "processes", "link_counts")
LABEL: Final = re.compile(r'(\w+)="')
# The series of a histogram.
PART: Final = re.compile(r"_(?:bucket|count|sum)$")
Row = dict[str, Any]


def catalogue() -> list[Row]:
    """Return all metrics, those of one process together."""
    telemetry = Telemetry()
    return [
        *_registered(telemetry.registry, GATEWAY),
        *_declared(declared.PUBLIC, GATEWAY),
        *_registered(telemetry.usage.registry, OPERATORS),
        *_declared(declared.OF_TENANTS, OPERATORS),
        *exported(node_text(), NODE),
    ]


def _registered(registry: CollectorRegistry, process: str) -> list[Row]:
    """Return the metrics of a registry of Prometheus's library, which names none of its labels."""
    return [
        {
            "name": metric._name + ("_total" if metric._type == "counter" else ""),
            "kind": metric._type,
            "labels": list(metric._labelnames),
            "help": metric._documentation,
            "process": process,
        }
        for metric in registry._collector_to_names
    ]


def _declared(metrics: Iterable[declared.Declared], process: str) -> list[Row]:
    return [
        {
            "name": each.name,
            "kind": each.kind,
            "labels": list(each.labels),
            "help": each.help,
            "process": process,
        }
        for each in metrics
    ]


def exported(written: str, process: str) -> list[Row]:
    """Return the metrics of a text in Prometheus's format, with the labels of all their series."""
    found: dict[str, Row] = {}
    for line in written.splitlines():
        word, _, rest = line.removeprefix("# ").partition(" ")
        name, _, last = rest.partition(" ")
        if line.startswith("# HELP"):
            found[name] = {"name": name, "help": last, "labels": [], "process": process}
        elif line.startswith("# TYPE"):
            found[name]["kind"] = last
        else:
            sample = word.partition("{")[0]
            row = found[sample if sample in found else PART.sub("", sample)]
            row["labels"] = list(dict.fromkeys((*row["labels"], *LABEL.findall(line))))
    return list(found.values())


def full_sample() -> Sample:
    """Return a sample that has every reading."""
    numbers: dict[str, Any] = {
        field.name: 1 for field in fields(Sample) if field.name not in OTHER_READINGS
    }
    return Sample(
        pci_bus=CARD.pci_bus,
        **numbers,
        throttled=("power_cap",),
        processes=(Process(7, 1),),
        link_counts=(LinkErrors(3, "replay", 40),),
    )


def node_text() -> str:
    """Return what a node exports that has a value for every metric."""
    job = JobShare(JobId("j1"), "blue", 14, "1g.10gb", slices=1)
    port = RdmaPort(
        device="mlx5_0", port=1, state="ACTIVE", counters={"port_rcv_data": 1}, unknown=("x",)
    )
    memory = MemoryReport(
        (DeviceMemory("GPU-1", 80, 10, ""),), (UsedMemory(JobId("j1"), 1, "GPU-1", "x", 10),), 1
    )
    return text(
        "n",
        [CARD],
        {CARD.uuid: full_sample()},
        {CARD.uuid: [job]},
        nvidia_version="580",
        healths={CARD.uuid: Health({"xid 94": 1}, {"xid 94": "degraded"})},
        rdma=[port],
        more=[
            *memory_metrics("n", memory),
            *weights_metrics("n", {("GPU-1", "m"): 1}),
            *link_metrics("n", {("dial", "tcp"): (1, 1)}),
            *beat_metrics("n", Beat(1), 1.0, 0),
            *disk_lines("n", 100, 50),
        ],
    )


def written(rows: Iterable[Row]) -> str:
    return json.dumps(list(rows), indent=1) + "\n"


def main() -> int:
    text_now = written(catalogue())
    path = Path(FILE)
    if not path.exists() or path.read_text() != text_now:
        path.write_text(text_now)
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
