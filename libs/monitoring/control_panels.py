"""Panels of the log, the control plane and tenants. Pure."""

from typing import Final

from libs.monitoring.panel import (
    BYTES,
    HALF,
    LINES,
    NONE,
    PER_SECOND,
    RATIO,
    SECONDS,
    SIXTH,
    STAT,
    TABLE,
    THIRD,
    one,
)

LOG: Final = (
    one(
        "Leaders",
        TABLE,
        NONE,
        THIRD,
        "max by (service, instance_id) (muster_service_leads)",
        why="1: the process leads its service.",
    ),
    one(
        "Commits that processes have not read",
        LINES,
        NONE,
        THIRD,
        "max by (service, instance_id) (muster_service_lag_commits)",
        "{{service}} {{instance_id}}",
    ),
    one("Lag of gateways", LINES, NONE, THIRD, "muster_gateway_lag_commits", "{{instance}}"),
    one("Log filled", STAT, RATIO, SIXTH, "max(muster_gateway_log_filled_ratio)"),
    one("Log full in", STAT, SECONDS, SIXTH, "min(muster_log_full_seconds)"),
    one("Size of the log", STAT, BYTES, SIXTH, "max(muster_log_bytes)"),
    one(
        "Facts per second",
        LINES,
        PER_SECOND,
        HALF,
        "max(rate(muster_facts_total[$__rate_interval]))",
        "facts",
    ),
    one(
        "Servers of the log",
        TABLE,
        NONE,
        THIRD,
        "max by (server) (muster_log_server_up)",
        why="Empty with one server.",
    ),
    one(
        "Certificates end in",
        TABLE,
        SECONDS,
        THIRD,
        "min by (certificate) (muster_certificate_end_timestamp_seconds) - time()",
    ),
    one(
        "Placement decisions",
        LINES,
        SECONDS,
        THIRD,
        "max by (quantile) (muster_scheduler_decision_seconds)",
        "quantile {{quantile}}",
    ),
    one(
        "Latency of gateways",
        LINES,
        SECONDS,
        HALF,
        "histogram_quantile(0.99, sum by (le, route) "
        "(rate(muster_gateway_request_seconds_bucket[$__rate_interval])))",
        "{{route}}",
        "99th percentile until the answer begins.",
    ),
    one(
        "Answers of gateways per second",
        LINES,
        PER_SECOND,
        HALF,
        "sum by (status) (rate(muster_gateway_requests_total[$__rate_interval]))",
        "{{status}}",
    ),
)

TENANT: Final = 'tenant=~"$tenant"'
TENANTS: Final = (
    one(
        "GPUs held",
        LINES,
        NONE,
        HALF,
        f"max by (tenant) (muster_tenant_held_gpus{{{TENANT}}})",
        "{{tenant}}",
    ),
    one(
        "Waiting jobs",
        LINES,
        NONE,
        HALF,
        f"max by (tenant) (muster_tenant_waiting_jobs{{{TENANT}}})",
        "{{tenant}}",
    ),
    one(
        "GPU hours charged",
        TABLE,
        NONE,
        THIRD,
        f"max by (tenant) (muster_tenant_used_gpu_seconds_total{{{TENANT}}}) / 3600",
    ),
    one(
        "Budget left",
        TABLE,
        RATIO,
        THIRD,
        f"max by (tenant) (muster_tenant_budget_left_gpu_seconds{{{TENANT}}} "
        "/ muster_tenant_budget_gpu_seconds)",
    ),
    one(
        "Tokens per second",
        LINES,
        PER_SECOND,
        THIRD,
        f"sum by (tenant) (rate(muster_model_tokens_total{{{TENANT}}}[$__rate_interval]))",
        "{{tenant}}",
    ),
)
