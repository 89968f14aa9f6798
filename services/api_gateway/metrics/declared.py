"""The names, help texts and labels of the metrics that gateways derive from the cluster's state.

Pure. Every gateway shows the same cluster, so queries take the maximum over gateways, not the sum.
Units are in the names. docs/reference/metrics.md is generated from these tables. Tests:
tests/unit/test_cluster_metrics.py.
"""

from typing import Final, NamedTuple

GAUGE: Final = "gauge"
COUNTER: Final = "counter"


class Declared(NamedTuple):
    """One metric: its name, meaning, labels and kind."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: str = GAUGE


# The log and the control plane.
LOG_COMMITS: Final = Declared("muster_log_commits", "Commits that the log holds")
LOG_BYTES: Final = Declared("muster_log_bytes", "Size of the log")
LOG_MAX_BYTES: Final = Declared("muster_log_max_bytes", "Largest size of the log; absent if none")
LOG_GROWTH: Final = Declared(
    "muster_log_growth_bytes_per_second", "Growth of the log, as measured over the last day"
)
LOG_FULL: Final = Declared(
    "muster_log_full_seconds",
    "Time until the log is full at its present growth; absent while it does not grow",
)
LOG_OLDEST: Final = Declared(
    "muster_log_oldest_commit_timestamp_seconds", "Time of the oldest commit that the log holds"
)
FACTS: Final = Declared("muster_facts_total", "Facts of the log since its beginning", kind=COUNTER)
IGNORED: Final = Declared(
    "muster_facts_ignored_total", "Facts that the life tables did not allow", kind=COUNTER
)
SERVER_UP: Final = Declared(
    "muster_log_server_up", "1 while this server of the log is online", ("server",)
)
SERVER_LEADS: Final = Declared(
    "muster_log_server_leads", "1 if this server leads the log", ("server",)
)
SERVER_LAG: Final = Declared(
    "muster_log_server_lag_commits", "Commits that this server of the log lacks", ("server",)
)
SERVICE_UP: Final = Declared(
    "muster_service_up",
    "1 while the process has reported in the last 5 seconds",
    ("service", "instance_id"),
)
SERVICE_LEADS: Final = Declared(
    "muster_service_leads", "1 if the process leads its service", ("service", "instance_id")
)
SERVICE_LAG: Final = Declared(
    "muster_service_lag_commits",
    "Commits that the process has not read, by its last sign of life",
    ("service", "instance_id"),
)
SERVICE_LEADERS: Final = Declared(
    "muster_service_leaders", "Processes of the service that lead and have reported", ("service",)
)
CERTIFICATE: Final = Declared(
    "muster_certificate_end_timestamp_seconds",
    "Time at which the certificate ends",
    ("certificate",),
)
DECISION: Final = Declared(
    "muster_scheduler_decision_seconds",
    "Time of a placement decision: quantiles of the last ones",
    ("quantile",),
)
DROPPED: Final = Declared(
    "muster_scheduler_dropped_messages_total",
    "Messages of nodes with a wrong sender or content",
    kind=COUNTER,
)
TERM: Final = Declared("muster_scheduler_term", "Term of the scheduler that leads")

# Nodes, devices and jobs.
NODES: Final = Declared("muster_nodes", "Nodes by state", ("state",))
NODE_UP: Final = Declared("muster_node_up", "1 while the scheduler counts on the node", ("node",))
NODE_WORKS: Final = Declared("muster_node_takes_work", "1 while the node takes new work", ("node",))
NODE_HEARD: Final = Declared(
    "muster_node_heartbeat_age_seconds", "Time since the last heartbeat of the node", ("node",)
)
NODE_LOST: Final = Declared(
    "muster_node_lost_timestamp_seconds",
    "Time at which the node last lost its lease; absent if it never did",
    ("node",),
)
NODE_HELD: Final = Declared(
    "muster_node_held_back", "1 while the node gets no work because it was lost often", ("node",)
)
GPUS: Final = Declared(
    "muster_gpus",
    "Devices: available, shared (held in part), allocated (held whole) or out_of_use",
    ("model", "state"),
)
GPUS_HELD: Final = Declared(
    "muster_gpus_held", "Devices that jobs hold, fractions counted as fractions", ("model",)
)
INSTANCES: Final = Declared(
    "muster_gpu_parts_held",
    "Parts of devices that jobs hold: MIG instances by profile, and shares by their isolation",
    ("model", "isolation", "profile"),
)
JOBS: Final = Declared("muster_jobs", "Jobs that have not ended, by state", ("state",))

# Models.
REPLICAS_READY: Final = Declared("muster_model_replicas_ready", "Ready replicas", ("model",))
REPLICAS_WANTED: Final = Declared("muster_model_replicas_wanted", "Replicas to have", ("model",))
CRASHES: Final = Declared(
    "muster_model_crashes", "Crashes of replicas since the last deployment or recovery", ("model",)
)
CRASH_LOOP: Final = Declared(
    "muster_model_crash_looping", "1 while replicas crash again and again", ("model",)
)

# Tenants: shown to operators only.
TENANT_HELD: Final = Declared("muster_tenant_held_gpus", "Devices that jobs hold", ("tenant",))
TENANT_MAX: Final = Declared(
    "muster_tenant_max_gpus", "Largest number of devices; absent without a limit", ("tenant",)
)
TENANT_WAITING: Final = Declared("muster_tenant_waiting_jobs", "Waiting jobs", ("tenant",))
TENANT_USED: Final = Declared(
    "muster_tenant_used_gpu_seconds_total", "GPU time that was charged", ("tenant",), COUNTER
)
TENANT_BUDGET: Final = Declared(
    "muster_tenant_budget_gpu_seconds", "Budget; absent without one", ("tenant",)
)
TENANT_LEFT: Final = Declared(
    "muster_tenant_budget_left_gpu_seconds",
    "What is left of the budget; below 0 if it is overdrawn",
    ("tenant",),
)
TENANT_SPENT: Final = Declared(
    "muster_tenant_budget_exhausted", "1 if the budget is used up", ("tenant",)
)

PUBLIC: Final = (
    *(LOG_COMMITS, LOG_BYTES, LOG_MAX_BYTES, LOG_GROWTH, LOG_FULL, LOG_OLDEST, FACTS, IGNORED),
    *(SERVER_UP, SERVER_LEADS, SERVER_LAG, SERVICE_UP, SERVICE_LEADS, SERVICE_LAG),
    *(SERVICE_LEADERS, CERTIFICATE, DECISION, DROPPED, TERM),
    *(NODES, NODE_UP, NODE_WORKS, NODE_HEARD, NODE_LOST, NODE_HELD),
    *(GPUS, GPUS_HELD, INSTANCES, JOBS),
    *(REPLICAS_READY, REPLICAS_WANTED, CRASHES, CRASH_LOOP),
)
OF_TENANTS: Final = (
    *(TENANT_HELD, TENANT_MAX, TENANT_WAITING, TENANT_USED),
    *(TENANT_BUDGET, TENANT_LEFT, TENANT_SPENT),
)
