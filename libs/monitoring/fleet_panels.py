"""Panels of nodes and devices. Pure."""

from typing import Final

from libs.monitoring.panel import (
    CELSIUS,
    HALF,
    LINES,
    NONE,
    QUARTER,
    RATE,
    RATIO,
    SECONDS,
    SIXTH,
    STAT,
    TABLE,
    THIRD,
    WATTS,
    Panel,
    Query,
    one,
)

NODE: Final = 'Hostname=~"$node"'
_GPU: Final = "{{Hostname}} gpu {{gpu}}"

FLEET: Final = (
    one("Nodes in use", STAT, NONE, SIXTH, "sum(max by (node) (muster_node_up))"),
    one(
        "Nodes by state",
        STAT,
        NONE,
        QUARTER,
        "max by (state) (muster_nodes)",
        "{{state}}",
    ),
    one(
        "GPUs by state",
        STAT,
        NONE,
        QUARTER,
        "sum by (state) (max by (model, state) (muster_gpus))",
        "{{state}}",
    ),
    one(
        "GPUs held",
        STAT,
        RATIO,
        SIXTH,
        "sum(max by (model) (muster_gpus_held)) / sum(max by (model, state) (muster_gpus))",
        why="Part of all GPUs that jobs hold; fractions count as fractions.",
    ),
    one("Silent devices", STAT, NONE, SIXTH, f"count(muster_gpu_up{{{NODE}}} == 0) or vector(0)"),
    Panel(
        "GPUs over time",
        LINES,
        NONE,
        HALF,
        (
            Query("sum(max by (model, state) (muster_gpus))", "all"),
            Query("sum(max by (model) (muster_gpus_held))", "held by jobs"),
            Query('sum(max by (model) (muster_gpus{state="out_of_use"})) or vector(0)', "out"),
        ),
    ),
    Panel(
        "How busy held GPUs are",
        LINES,
        RATIO,
        HALF,
        (
            Query(
                f"avg(muster_gpu_busy_ratio{{{NODE}}} and on (UUID) muster_gpu_job_share)", "mean"
            ),
            Query(
                f"quantile(0.1, muster_gpu_busy_ratio{{{NODE}}} and on (UUID) "
                "muster_gpu_job_share)",
                "least busy tenth",
            ),
        ),
        "Time in which a kernel ran; it does not say how much of the GPU the kernel used.",
    ),
    one(
        "Memory used",
        LINES,
        RATIO,
        THIRD,
        f"sum by (Hostname) (muster_gpu_memory_used_bytes{{{NODE}}})"
        f" / sum by (Hostname) (muster_gpu_memory_bytes{{{NODE}}})",
        "{{Hostname}}",
    ),
    one(
        "Power",
        LINES,
        WATTS,
        THIRD,
        f"sum by (Hostname) (muster_gpu_power_watts{{{NODE}}})",
        "{{Hostname}}",
    ),
    one(
        "Hottest GPUs",
        LINES,
        CELSIUS,
        THIRD,
        f"topk(10, muster_gpu_temperature_celsius{{{NODE}}})",
        _GPU,
    ),
    one(
        "Errors of devices in the last day",
        TABLE,
        NONE,
        HALF,
        f"max by (Hostname, UUID, error) (max_over_time(muster_gpu_errors_total{{{NODE}}}[1d]))",
    ),
    one(
        "Devices out of use",
        TABLE,
        NONE,
        HALF,
        f"max by (Hostname, UUID, reason, health) (muster_gpu_trouble{{{NODE}}})",
    ),
    one(
        "Lost leases",
        TABLE,
        SECONDS,
        THIRD,
        "time() - max by (node) (muster_node_lost_timestamp_seconds)",
        why="Seconds since each node last lost its lease.",
    ),
    one(
        "Age of heartbeats",
        LINES,
        SECONDS,
        THIRD,
        "topk(10, max by (node) (muster_node_heartbeat_age_seconds))",
        "{{node}}",
    ),
    one(
        "Free disk of nodes",
        LINES,
        RATIO,
        THIRD,
        f"muster_node_disk_free_bytes{{{NODE}}} / muster_node_disk_bytes{{{NODE}}}",
        "{{Hostname}}",
    ),
    one(
        "Shared cards",
        TABLE,
        NONE,
        HALF,
        f"max by (Hostname, UUID, gpu, hpc_job, tenant) (muster_gpu_job_share{{{NODE}}}) < 1",
        why="A row for each job that has a part of a card.",
    ),
    one(
        "MIG instances",
        TABLE,
        NONE,
        HALF,
        "max by (Hostname, UUID, gpu, GPU_I_PROFILE, first_slice, hpc_job, tenant) "
        f"(muster_gpu_instance_memory_slices{{{NODE}}})",
        why="A row for each MIG instance in which a job runs, with its memory slices.",
    ),
)

PROFILING: Final = (
    one("SM activity", LINES, RATIO, THIRD, f"muster_gpu_sm_active_ratio{{{NODE}}}", _GPU),
    one("SM occupancy", LINES, RATIO, THIRD, f"muster_gpu_sm_occupancy_ratio{{{NODE}}}", _GPU),
    one("Tensor activity", LINES, RATIO, THIRD, f"muster_gpu_tensor_active_ratio{{{NODE}}}", _GPU),
    one(
        "Memory bandwidth",
        LINES,
        RATIO,
        THIRD,
        f"muster_gpu_memory_bandwidth_ratio{{{NODE}}}",
        _GPU,
    ),
    Panel(
        "PCIe",
        LINES,
        RATE,
        THIRD,
        (
            Query(f"rate(muster_gpu_pcie_sent_bytes_total{{{NODE}}}[$__rate_interval])", "sent"),
            Query(
                f"rate(muster_gpu_pcie_received_bytes_total{{{NODE}}}[$__rate_interval])",
                "received",
            ),
        ),
    ),
    Panel(
        "NVLink, XGMI",
        LINES,
        RATE,
        THIRD,
        (
            Query(f"rate(muster_gpu_link_sent_bytes_total{{{NODE}}}[$__rate_interval])", "sent"),
            Query(
                f"rate(muster_gpu_link_received_bytes_total{{{NODE}}}[$__rate_interval])",
                "received",
            ),
        ),
    ),
)
