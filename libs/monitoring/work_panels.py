"""Panels of jobs and of models that serve. Pure."""

from typing import Final

from libs.monitoring.panel import (
    HALF,
    LINES,
    NONE,
    PER_SECOND,
    RATIO,
    SECONDS,
    TABLE,
    THIRD,
    Panel,
    Query,
    one,
)

JOBS: Final = (
    one("Jobs by state", LINES, NONE, HALF, "max by (state) (muster_jobs)", "{{state}}"),
    one(
        "Ended jobs per second",
        LINES,
        PER_SECOND,
        HALF,
        "max by (outcome) (rate(muster_jobs_ended_total[$__rate_interval]))",
        "{{outcome}}",
    ),
    Panel(
        "Wait of placed jobs",
        LINES,
        SECONDS,
        HALF,
        tuple(
            Query(
                f"histogram_quantile({quantile}, max by (le) "
                "(increase(muster_job_wait_seconds_bucket[1h])))",
                name,
            )
            for quantile, name in (("0.5", "median"), ("0.99", "99th percentile"))
        ),
    ),
    Panel(
        "Submitted, requeued",
        LINES,
        PER_SECOND,
        HALF,
        (
            Query("max(rate(muster_jobs_submitted_total[$__rate_interval]))", "submitted"),
            Query("max(rate(muster_jobs_requeued_total[$__rate_interval]))", "requeued"),
        ),
    ),
    one(
        "Largest jobs",
        TABLE,
        NONE,
        THIRD,
        'topk(20, sum by (hpc_job, tenant) (muster_gpu_job_share{tenant=~"$tenant"}))',
        why="The GPUs that each running job has.",
    ),
    one(
        "Held but idle",
        TABLE,
        RATIO,
        THIRD,
        "(avg_over_time(muster_gpu_busy_ratio[5m]) < 0.05) and on (UUID) muster_gpu_job_share",
    ),
    one(
        "Energy of jobs in the last hour (J)",
        TABLE,
        "joule",
        THIRD,
        "topk(20, sum by (hpc_job, tenant) "
        '(increase(muster_gpu_energy_joules_total{hpc_job!="",tenant=~"$tenant"}[1h])))',
    ),
)

SERVING: Final = (
    one(
        "Requests per second",
        LINES,
        PER_SECOND,
        HALF,
        "sum by (model) (rate(muster_model_requests_total[$__rate_interval]))",
        "{{model}}",
    ),
    one(
        "Failed requests per second",
        LINES,
        PER_SECOND,
        HALF,
        'sum by (model, status) (rate(muster_model_requests_total{status=~"4..|5.."}'
        "[$__rate_interval]))",
        "{{model}} {{status}}",
    ),
    Panel(
        "Time to the first token",
        LINES,
        SECONDS,
        HALF,
        tuple(
            Query(
                f"histogram_quantile({quantile}, sum by (le, model) "
                "(rate(muster_model_first_token_seconds_bucket[$__rate_interval])))",
                f"{{{{model}}}} {name}",
            )
            for quantile, name in (("0.5", "median"), ("0.99", "99th percentile"))
        ),
    ),
    Panel(
        "Waiting and open requests",
        LINES,
        NONE,
        HALF,
        (
            Query("sum by (model) (muster_model_requests_waiting)", "{{model}} waiting"),
            Query("sum by (model) (muster_model_requests_open)", "{{model}} open"),
        ),
    ),
    Panel(
        "Replicas",
        LINES,
        NONE,
        THIRD,
        (
            Query("max by (model) (muster_model_replicas_ready)", "{{model}} ready"),
            Query("max by (model) (muster_model_replicas_wanted)", "{{model}} wanted"),
        ),
    ),
    one(
        "Crashes since deployment",
        TABLE,
        NONE,
        THIRD,
        "max by (model) (muster_model_crashes)",
    ),
    one(
        "Tokens per second",
        LINES,
        PER_SECOND,
        THIRD,
        "sum by (model, direction) (rate(muster_model_tokens_total[$__rate_interval]))",
        "{{model}} {{direction}}",
    ),
)
