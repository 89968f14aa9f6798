"""The agent's report about granted memory: to the gateway, and as metrics.

Pure. A job may give its grants any purpose, so the purposes that are told are bounded. Tests:
tests/unit/test_memory_report.py.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from libs.common.messages.memory_messages import (
    HOST_MEMORY,
    DeviceMemory,
    MemoryReport,
    UsedMemory,
)
from libs.common.model import attempt_of
from services.node_agent.memory.device_memory import Device
from services.node_agent.memory.grants import HOST, Attempt, Grant
from services.node_agent.metrics.lines import family, labels
from services.node_agent.metrics.series import COUNTER, GAUGE

# Purposes of one attempt on one device; the bytes of further ones are told together.
PURPOSES_MAX: Final = 16
OTHER_PURPOSES: Final = "other purposes"
LOST: Final = "unknown: the broker and the agent ended together"
# Jobs of one device that have metrics of their own.
JOBS_MAX: Final = 16
OTHER_JOBS: Final = "other"


def report(
    devices: Mapping[int, Device],
    answers: Mapping[int, str],
    attempts: Mapping[str, Attempt],
    grants: Iterable[Grant],
    restarts: int,
) -> MemoryReport:
    """Return the report. `answers` is why a device is unusable, empty if it is usable."""
    used: dict[tuple[str, int], dict[str, int]] = {}
    for attempt in attempts.values():
        if attempt.lost:
            for number, size in attempt.limits.items():
                used[attempt.key, number] = {LOST: size}
    for grant in grants:
        purposes = used.setdefault((grant.key, grant.device), {})
        known = grant.purpose in purposes or len(purposes) < PURPOSES_MAX
        purpose = grant.purpose if known else OTHER_PURPOSES
        purposes[purpose] = purposes.get(purpose, 0) + grant.bytes
    granted = dict.fromkeys(devices, 0)
    for (_, number), purposes in used.items():
        granted[number] = granted.get(number, 0) + sum(purposes.values())
    rows = [
        UsedMemory(ref.job_id, ref.attempt, name_of(devices, number), purpose, size)
        for (key, number), purposes in used.items()
        for ref in (attempt_of(key),)
        for purpose, size in purposes.items()
    ]
    told = (
        DeviceMemory(
            name_of(devices, number), device.bytes, granted[number], answers.get(number, "")
        )
        for number, device in devices.items()
    )
    return MemoryReport(tuple(told), tuple(rows), restarts)


def name_of(devices: Mapping[int, Device], number: int) -> str:
    """Return the device's UUID, or the word for host memory."""
    return HOST_MEMORY if number == HOST or number not in devices else devices[number].uuid


def metrics(node: str, told: MemoryReport) -> list[str]:
    """Return the gauges of a report in Prometheus's text format."""
    if not told.restarts:
        return []
    place = {"Hostname": node}
    capacity = (
        (labels({"UUID": each.device} | place), each.capacity_bytes) for each in told.devices
    )
    granted = ((labels({"UUID": each.device} | place), each.granted_bytes) for each in told.devices)
    usable = (
        (labels({"UUID": each.device} | place), 0 if each.unusable else 1) for each in told.devices
    )
    jobs = (
        (labels({"UUID": device, "hpc_job": job} | place), size)
        for (device, job), size in _by_job(told).items()
    )
    return [
        *family(
            "muster_pool_capacity_bytes",
            "Memory that the memory broker may grant",
            GAUGE,
            capacity,
        ),
        *family("muster_pool_granted_bytes", "Memory that the broker has granted", GAUGE, granted),
        *family("muster_pool_usable", "1 while the device gives memory", GAUGE, usable),
        *family("muster_pool_job_bytes", "Memory that a job holds", GAUGE, jobs),
        *family(
            "muster_memory_broker_starts_total",
            "Memory brokers that this agent has started",
            COUNTER,
            [(labels(place), told.restarts)],
        ),
    ]


def weights_metrics(node: str, held: Mapping[tuple[str, str], int]) -> list[str]:
    """Return the gauges of weights that stay on devices, by device and model."""
    values = (
        (labels({"UUID": uuid, "model": model, "Hostname": node}), size)
        for (uuid, model), size in held.items()
    )
    name = "muster_resident_weights_bytes"
    return family(name, "Weights that stay between replicas", GAUGE, values) if held else []


def _by_job(told: MemoryReport) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    count: dict[str, int] = {}
    for row in told.used:
        name = (row.device, str(row.job_id))
        if name not in found and count.get(row.device, 0) >= JOBS_MAX:
            name = (row.device, OTHER_JOBS)
        elif name not in found:
            count[row.device] = count.get(row.device, 0) + 1
        found[name] = found.get(name, 0) + row.granted_bytes
    return found
