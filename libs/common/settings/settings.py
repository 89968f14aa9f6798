"""The settings of all processes. Every default works on a laptop.

`configuration.py` reads the values from their sources, `help_texts.py` holds the help texts.
docs/settings.md and .env.example are generated from both. Both ends of a lease must agree on its
times, so these are a fact (`Timing` in ClusterConfigured): the settings heartbeat, lease, margin
and term only fill the first such fact.
"""

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

PREFIX = "MUSTER_"
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
SMTP_TLS: Final = ("starttls", "tls", "off")
PORTS: Final = (0, 65_535)
HIDDEN: Final = "***"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process.

    The environment variable of a field is MUSTER_ and its name in capitals. `help_texts.HELP`
    holds its meaning.
    """

    nats: str = "nats://127.0.0.1:4222"
    nats_ca_file: str = ""
    nkey_seed_file: str = ""
    state: str = ".muster"
    instance: str = "a"
    cluster_id: str = "local"
    stream_replicas: int = 1
    stream_bytes: int = 8 << 30
    tenant_bytes_per_minute: int = 0
    node_burst_bytes: int = 16 << 20
    followers_per_tenant: int = 256
    followers_per_job: int = 64
    heartbeat_ms: int = 1_000
    lease_ms: int = 13_000
    margin_ms: int = 1_500
    term_ms: int = 3_000
    stop_lease_ms: int = 600_000
    placement: str = "fragmentation"
    grow_after_s: int = 300
    state_hash_every: int = 8_192
    hold_s: int = 600
    fabric_every_s: int = 86_400
    fabric_pair_ms: int = 200
    fabric_bulk_kib: int = 8_192
    fabric_drain: int = 0
    fabric_measured_racks: int = 0
    fabric_exclude_s: int = 600
    gateway_host: str = "127.0.0.1"
    gateway_port: int = 8080
    gateway_cors_origins: str = ""
    gateway_trusted_proxies: str = ""
    gateway_session_s: int = 43_200
    gateway_past_bytes: int = 512 << 20
    gateway_url: str = ""
    oidc_issuer: str = ""
    oidc_client_id: str = ""
    oidc_client_secret_file: str = ""
    oidc_scopes: str = "openid profile email groups"
    oidc_user_claim: str = "email"
    oidc_groups_claim: str = "groups"
    oidc_groups_file: str = ""
    oidc_answer_ms: int = 5_000
    notify_networks: str = ""
    notify_mail_domains: str = ""
    notify_ca_file: str = ""
    smtp_host: str = ""
    smtp_port: int = 587
    smtp_tls: str = "starttls"
    smtp_from: str = "muster@localhost"
    smtp_user: str = ""
    smtp_password_file: str = ""
    gateway_tls_host: str = ""
    gateway_tls_port: int = 8443
    gateway_cert_file: str = ""
    gateway_key_file: str = ""
    gateway_grpc_host: str = ""
    gateway_grpc_port: int = 9090
    gateway_grpc_bytes: int = 1 << 30
    join_url: str = ""
    join_nats: str = ""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    api_keys_file: str = ""
    vault_key_file: str = ""
    model_connect_ms: int = 2_000
    model_answer_ms: int = 600_000
    model_idle_ms: int = 300_000
    model_body_ms: int = 60_000
    model_keepalive_ms: int = 4_000
    model_attempts: int = 3
    model_headers_ms: int = 120_000
    model_adapter_ms: int = 120_000
    model_retry_percent: int = 2
    model_requests_max: int = 4_096
    model_bodies_bytes: int = 2 << 30
    model_body_bytes: int = 16 << 20
    model_form_bytes: int = 256 << 20
    model_forms_bytes: int = 2 << 30
    model_answer_bytes: int = 128 << 20
    model_output_tokens: int = 4_096
    model_suspect_ms: int = 3_000
    model_wait_ms: int = 600_000
    model_waiting_tokens: int = 16_000_000
    model_tenant_waiting_tokens: int = 4_000_000
    model_room_tokens: int = 2_048
    model_room_requests: int = 1_024
    model_prefix_bytes: int = 64 << 20
    limits_answer_ms: int = 2_000
    upload_bytes: int = 256 << 20
    upload_files: int = 50_000
    upload_store_bytes: int = 4 << 30
    upload_cache_bytes: int = 1 << 30
    access_flush_ms: int = 100
    audit_url: str = ""
    audit_begin: int = 1
    audit_stream_bytes: int = 1 << 30
    audit_key_file: str = ""
    audit_head_every_s: int = 60
    audit_head_commits: int = 10_000
    trimmer_seed_file: str = ""
    trimmer_key_file: str = ""
    trim_keep_commits: int = 100_000
    trim_keep_hours: int = 72
    trim_full_percent: int = 60
    trim_every_s: int = 60
    node_id: str = ""
    node_address: str = "127.0.0.1"
    link_port: int = 0
    link_transport: str = "auto"
    link_tenant_bytes_per_s: int = 1 << 30
    node_cpus: int = 0
    node_memory_gib: int = 0
    node_labels: str = ""
    node_rack: str = ""
    node_spine: str = ""
    gpu_driver: str = "simulated"
    gpus_removed: str = ""
    simulated_gpus: int = 8
    simulated_model: str = "Simulated H100"
    simulated_memory_gib: int = 80
    keep_hours: int = 720
    keep_bytes: int = 8 << 30
    keep_jobs: int = 2_000
    kept_artefact_bytes: int = 20 << 30
    kept_memory_dir: str = "/dev/shm"  # nosec B108
    tail_hours: int = 720
    tail_bytes: int = 2 << 30
    release_ms: int = 30_000
    driver_answer_ms: int = 8_000
    driver_begin_ms: int = 60_000
    driver_reset_s: int = 60
    sample_ms: int = 100
    alive_file: str = ""
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 9460
    probe_ms: int = 2_000
    kernel_log: str = "/dev/kmsg"
    health_catalogue: str = "nvidia-guidance"
    health_site: str = ""
    health_shadow: int = 0
    health_breaker_percent: int = 50
    health_breaker_s: int = 300
    health_pause_c: int = 85
    health_resume_c: int = 80
    health_hot: str = ""
    health_corrected_max: int = 100
    health_link_errors_max: int = 100
    health_corrected_window_s: int = 3_600
    mps_control: str = "nvidia-cuda-mps-control"
    mps_start_ms: int = 10_000
    mps_quit_ms: int = 5_000
    container_engine: str = ""
    container_mounts: str = ""
    container_users: str = ""
    container_image_bytes: int = 200 << 30
    container_cache_bytes: int = 200 << 30
    hub: str = "https://huggingface.co"
    pulled_dir: str = ""
    pulled_bytes: int = 500 << 30
    traces: int = 1
    trace_cupti: int = 0
    trace_job_bytes: int = 1 << 30
    trace_bytes: int = 4 << 30
    diagnose_after_s: int = 600
    diagnose_hook: int = 1
    preflight: int = 1
    burn_in: str = ""
    burn_in_ms: int = 120_000
    scrub: str = ""
    scrub_ms: int = 60_000
    hardware_watchdog: str = ""
    hardware_watchdog_s: int = 5
    share_grace_s: int = 60
    execs_per_job: int = 8
    cgroup: str = "muster"
    job_users: str = ""
    tenant_uids: str = "70000-99999"
    tenant_uid_table: str = "/var/lib/muster/tenant-uids.json"
    log_level: str = "INFO"
    otlp_endpoint: str = ""
    span_job_percent: int = 100
    span_request_percent: int = 10
    record_ms: int = 25_000
    settle_ms: int = 5_000
    ask_ms: int = 5_000
    ask_past_ms: int = 35_000
    trace_lead_ms: int = 8_000
    stdin_ms: int = 10_000
    keepalive_ms: int = 15_000
    wait_max_ms: int = 600_000
    gateway_stop_ms: int = 3_000
    gateway_head_ms: int = 10_000
    gateway_unread_ms: int = 60_000
    ready_silence_ms: int = 10_000
    ready_lag_commits: int = 2_000
    log_connect_ms: int = 10_000
    log_append_ms: int = 45_000
    up_ready_ms: int = 30_000
    up_stop_ms: int = 10_000

    @property
    def servers(self) -> list[str]:
        """The NATS servers as a list."""
        return [server.strip() for server in self.nats.split(",") if server.strip()]

    @property
    def labels(self) -> dict[str, str]:
        """`node_labels` as a mapping."""
        return dict(part.strip().split("=", 1) for part in self.node_labels.split(",") if part)

    @property
    def nkey_seed(self) -> bytes | None:
        """The nkey seed of the process; None if no file is set (tests use servers without
        authentication).
        """
        return Path(self.nkey_seed_file).read_bytes().strip() if self.nkey_seed_file else None

    @property
    def trimmer_seed(self) -> bytes | None:
        """The nkey seed of the trimmer; None if no file is set."""
        return Path(self.trimmer_seed_file).read_bytes().strip() if self.trimmer_seed_file else None

    @property
    def audit_key(self) -> bytes | None:
        """The seed that signs heads of the audit chain; None if no file is set."""
        return Path(self.audit_key_file).read_bytes().strip() if self.audit_key_file else None

    @property
    def audit_database(self) -> str:
        """The SQLAlchemy URL of the archive: MUSTER_AUDIT_URL, or else an SQLite file in the state
        directory.
        """
        return self.audit_url or f"sqlite:///{Path(self.state).resolve() / 'audit.db'}"


# The settings of each YAML file. Settings in no row belong in cluster.yaml.
FILES: Final[dict[str, tuple[str, ...]]] = {
    "cluster": (),
    "security": (
        "nkey_seed_file",
        "api_keys_file",
        "trimmer_seed_file",
        "trimmer_key_file",
        "oidc_client_secret_file",
        "smtp_password_file",
        "oidc_groups_file",
    ),
    "monitoring": (
        "log_level",
        *("otlp_endpoint", "span_job_percent", "span_request_percent"),
        "alive_file",
        "metrics_host",
        "metrics_port",
        "ready_silence_ms",
        "ready_lag_commits",
    ),
    "performance": (
        *("trim_keep_commits", "trim_keep_hours", "trim_full_percent", "trim_every_s"),
        *(
            "model_connect_ms",
            "model_answer_ms",
            "model_idle_ms",
            "model_body_ms",
            "model_keepalive_ms",
            "model_attempts",
            "model_headers_ms",
            "model_adapter_ms",
            "model_retry_percent",
        ),
        *(
            "record_ms",
            "settle_ms",
            "ask_ms",
            "ask_past_ms",
            "trace_lead_ms",
            "stdin_ms",
            "keepalive_ms",
            "wait_max_ms",
            "gateway_stop_ms",
            "gateway_head_ms",
            "gateway_unread_ms",
            "log_connect_ms",
        ),
        *("log_append_ms", "up_ready_ms", "up_stop_ms", "keep_hours", "keep_bytes", "keep_jobs"),
        "kept_artefact_bytes",
        *(
            "tail_hours",
            "tail_bytes",
            "release_ms",
            "driver_answer_ms",
            "driver_begin_ms",
            "driver_reset_s",
            "sample_ms",
        ),
        *("probe_ms", "model_suspect_ms", "access_flush_ms"),
        *("mps_start_ms", "mps_quit_ms"),
        *("model_requests_max", "model_body_bytes", "model_form_bytes"),
        *("model_forms_bytes", "model_bodies_bytes"),
        *("model_answer_bytes", "model_output_tokens"),
        *("model_wait_ms", "model_waiting_tokens", "model_tenant_waiting_tokens"),
        *("model_room_tokens", "model_room_requests", "model_prefix_bytes"),
    ),
}


def file_of(name: str) -> str:
    """Return the YAML file that holds the setting, without its ending."""
    return next((stem for stem, names in FILES.items() if name in names), "cluster")


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment variables that give a child process these settings."""
    return {
        PREFIX + name.upper(): str(value)
        for name, value in msgspec.structs.asdict(settings).items()
    }


def checked(name: str, raw: object) -> tuple[Any, str]:
    """Return the value in the type of its setting and an empty text, or None and the fault.

    The fault of a text does not quote the value, which may be a secret.
    """
    variable = PREFIX + name.upper()
    if not isinstance(getattr(Settings(), name), int):
        return _checked_text(name, variable, raw)
    try:
        number = int(raw) if isinstance(raw, str | int) and not isinstance(raw, bool) else None
    except ValueError:
        number = None
    if number is None:
        return None, f"{variable} must be a whole number"
    low, high = PORTS if name.endswith("_port") else (1 if name.endswith("_ms") else 0, 1 << 62)
    return (
        (number, "")
        if low <= number <= high
        else (None, f"{variable}={number} is out of range: use {low} to {high}")
    )


def _checked_text(name: str, variable: str, raw: object) -> tuple[str, str]:
    if not isinstance(raw, str | None):
        return "", f"{variable} must be a text: put the value in quotes"
    text = raw or ""
    if name == "log_level":
        text = text.upper()
        if text not in LOG_LEVELS:
            return "", f"{variable} must be one of {', '.join(LOG_LEVELS)}"
    if name == "smtp_tls" and text not in SMTP_TLS:
        return "", f"{variable} must be one of {', '.join(SMTP_TLS)}"
    return text, ""


def shown(name: str, value: object) -> str:
    """Return the value as people may see it, with passwords in addresses hidden."""
    text = str(value)
    if name in ("nats", "audit_url", "otlp_endpoint") and "@" in text:
        return ",".join(_without_password(part) for part in text.split(","))
    return text


def _without_password(url: str) -> str:
    try:
        password = urlsplit(url).password
    except ValueError:
        return HIDDEN
    head, _, host = url.rpartition("@")
    return f"{head[: len(head) - len(password)]}{HIDDEN}@{host}" if password else url
