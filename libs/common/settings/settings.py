"""Every process's settings, each with a default that runs on a laptop.

Where a value comes from is `configuration.py`.

One table for all services; docs/settings.md and .env.example are generated from it and
tests/test_docs.py holds that none is missing. What both ends of a lease must agree on is a fact
(`Timing` in ClusterConfigured), not a setting: the heartbeat, lease, margin and term here only fill
the first such fact.
"""

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

PREFIX = "MUSTER_"
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
PORTS: Final = (0, 65_535)
HIDDEN: Final = "***"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The environment variable of a field is its upper-case name with MUSTER_ before it; HELP gives
    its meaning.
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
    gateway_host: str = "127.0.0.1"
    gateway_port: int = 8080
    gateway_tls_host: str = ""
    gateway_tls_port: int = 8443
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
    model_requests_max: int = 4_096
    model_body_bytes: int = 16 << 20
    model_answer_bytes: int = 128 << 20
    model_output_tokens: int = 4_096
    model_suspect_ms: int = 3_000
    limits_answer_ms: int = 2_000
    upload_bytes: int = 256 << 20
    upload_files: int = 50_000
    upload_store_bytes: int = 4 << 30
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
    preflight: int = 1
    burn_in: str = ""
    burn_in_ms: int = 120_000
    scrub: str = ""
    scrub_ms: int = 60_000
    share_grace_s: int = 60
    execs_per_job: int = 8
    cgroup: str = "muster"
    job_users: str = ""
    tenant_uids: str = "70000-99999"
    tenant_uid_table: str = "/var/lib/muster/tenant-uids.json"
    log_level: str = "INFO"
    record_ms: int = 25_000
    settle_ms: int = 5_000
    ask_ms: int = 5_000
    ask_past_ms: int = 35_000
    stdin_ms: int = 10_000
    keepalive_ms: int = 15_000
    wait_max_ms: int = 600_000
    gateway_stop_ms: int = 3_000
    gateway_head_ms: int = 10_000
    ready_silence_ms: int = 10_000
    ready_lag_commits: int = 2_000
    log_connect_ms: int = 10_000
    log_append_ms: int = 45_000
    up_ready_ms: int = 30_000
    up_stop_ms: int = 10_000

    @property
    def servers(self) -> list[str]:
        return [server.strip() for server in self.nats.split(",") if server.strip()]

    @property
    def labels(self) -> dict[str, str]:
        """`node_labels` as a mapping."""
        return dict(part.strip().split("=", 1) for part in self.node_labels.split(",") if part)

    @property
    def nkey_seed(self) -> bytes | None:
        """The process's own seed; None when no file is named (a server without authentication:
        tests).
        """
        return Path(self.nkey_seed_file).read_bytes().strip() if self.nkey_seed_file else None

    @property
    def trimmer_seed(self) -> bytes | None:
        """The trimmer's own seed; None when no file is named."""
        return Path(self.trimmer_seed_file).read_bytes().strip() if self.trimmer_seed_file else None

    @property
    def audit_key(self) -> bytes | None:
        """The seed that signs the chain's heads; None when no file is named."""
        return Path(self.audit_key_file).read_bytes().strip() if self.audit_key_file else None

    @property
    def audit_database(self) -> str:
        """The archive's SQLAlchemy URL; an SQLite file in the state directory unless
        MUSTER_AUDIT_URL says otherwise.
        """
        return self.audit_url or f"sqlite:///{Path(self.state).resolve() / 'audit.db'}"


HELP = {
    "nats": "NATS servers, comma-separated",
    "nats_ca_file": (
        "certificate of the authority that the NATS servers' certificates are of; TLS from the "
        "first byte. Empty: no TLS"
    ),
    "nkey_seed_file": "file with this process's nkey seed (mode 0600)",
    "state": "directory for this process's own files",
    "instance": "gateway instance id: one live writer each",
    "cluster_id": "name of the cluster, recorded once",
    "stream_replicas": "replicas of the log: 1 embedded, 3 in a cluster",
    "stream_bytes": (
        "bound of the log in bytes; submissions are refused at 80 %, other changes later "
        "(docs/howto/trim.md)"
    ),
    "tenant_bytes_per_minute": (
        "gateway: bytes that one tenant's requests add to the log in a minute; 0: a fiftieth of "
        "MUSTER_STREAM_BYTES"
    ),
    "node_burst_bytes": (
        "gateway: bytes that a node may write to the log beyond its jobs' facts before its key "
        "is revoked; 0: no bound"
    ),
    "followers_per_tenant": (
        "gateway: clients of one tenant that follow output, events or a watch, or have a channel "
        "open, at one time"
    ),
    "followers_per_job": "gateway: the same for one job",
    "heartbeat_ms": "first ClusterConfigured: how often an agent reports",
    "lease_ms": "first ClusterConfigured: how long a node may run on unheard",
    "margin_ms": "first ClusterConfigured: added silence before a node is lost",
    "term_ms": "first ClusterConfigured: how long a scheduler's leadership write counts",
    "stop_lease_ms": "lease that a planned stop leaves behind",
    "placement": (
        "scheduler: how a node is chosen for who does not say: fragmentation, best_fit, "
        "first_fit, worst_fit, least_loaded ..."
    ),
    "grow_after_s": (
        "scheduler: how long a gang that may have more nodes runs before it is begun anew with more"
    ),
    "gateway_host": "address that the gateway listens on",
    "gateway_port": "port that the gateway listens on",
    "gateway_tls_host": (
        "address on which the gateway also listens with TLS, and where other machines join; "
        "empty: it does not"
    ),
    "gateway_tls_port": "port of that",
    "join_url": (
        "where other machines reach that port, when they see it elsewhere: https://ADDRESS:PORT"
    ),
    "join_nats": "where other machines reach the NATS servers; empty: as this process does",
    "tls_ca_file": "certificate of the gateway's own authority: what a joining machine pins",
    "tls_cert_file": "the gateway's certificate",
    "tls_key_file": "its private key (mode 0600)",
    "api_keys_file": "file of accepted API keys as SHA-256 hex, one a line; empty accepts none",
    "vault_key_file": (
        "file with the key (32 bytes, base64) under which the gateways keep tenants' secrets; "
        "empty: no secrets are kept"
    ),
    "model_connect_ms": "how long a replica of a model may take to accept a connection",
    "model_answer_ms": "how long it may take to answer; of a stream: to its first event",
    "model_idle_ms": "how long a stream of a model may say nothing",
    "model_body_ms": (
        "how long a client may take to send the body of a request, or be silent while it sends "
        "an upload"
    ),
    "model_keepalive_ms": (
        "how long an idle connection to a replica is kept; keep it under the replica's own bound"
    ),
    "model_attempts": "replicas tried for one request while the client has been sent nothing",
    "model_requests_max": "OpenAI requests that may be open at once in one gateway",
    "model_body_bytes": "largest body of an OpenAI request",
    "model_answer_bytes": "largest answer of a model that is not a stream",
    "model_output_tokens": (
        "max_tokens of a request that names none and counts against a token limit"
    ),
    "model_suspect_ms": (
        "how long a replica that failed a request is passed over while there are others"
    ),
    "limits_answer_ms": (
        "how long quota may take to give a gateway a part of a limited tenant's minute"
    ),
    "upload_bytes": (
        "largest directory that a job may bring along (--upload), as an archive; command, "
        "gateways and agents each keep to it"
    ),
    "upload_files": "most files and folders in it",
    "upload_store_bytes": (
        "bound of the bucket UPLOADS, where such archives lie, when it is first made"
    ),
    "access_flush_ms": (
        "gateway: how long access records are gathered; a gateway that is killed loses them"
    ),
    "audit_url": "archive database (SQLAlchemy URL); default SQLite in the state directory",
    "audit_begin": (
        "first commit of an empty archive; above 1 only when the log was trimmed and the archive "
        "before it is lost for ever"
    ),
    "audit_stream_bytes": (
        "bound of the stream AUDIT, where events for consumers are published, the oldest go "
        "first; 0: it is not written"
    ),
    "audit_key_file": (
        "file with the nkey seed that signs the heads of the audit chain (not the process's "
        "own); empty: none is signed"
    ),
    "audit_head_every_s": "how often a new head of the chain is signed and published",
    "audit_head_commits": "after so many commits one is signed earlier",
    "trimmer_seed_file": (
        "file with the nkey seed that may trim the log (audit's process); empty: the log is "
        "never trimmed"
    ),
    "trimmer_key_file": (
        "file with the trimmer's public nkey; a snapshot `base` is used only if that key signed "
        "it; empty: never"
    ),
    "trim_keep_commits": (
        "number of latest commits that stay unless the log is too full; below 100000 a new "
        "gateway may know less history"
    ),
    "trim_keep_hours": (
        "older commits leave the log for the archive; below this age only when the log is too full"
    ),
    "trim_full_percent": "over this part of MUSTER_STREAM_BYTES younger commits leave the log too",
    "trim_every_s": "how often it is looked whether something can be trimmed",
    "node_id": "this node's name, [a-z0-9-]{1,63}",
    "node_address": "address under which other nodes reach this one (MASTER_ADDR)",
    "node_cpus": "CPUs that jobs may ask for on this node; 0: all that the agent may use",
    "node_memory_gib": "memory of the host that jobs may ask for; 0: all of it",
    "node_labels": "labels that jobs may ask for, name=value with commas between them",
    "node_rack": "the rack (leaf switch) that this node is in",
    "node_spine": "the spine above that",
    "gpu_driver": "simulated, or local: the devices of this machine",
    "gpus_removed": (
        "node: GPUs that were taken out of this machine or are not Muster's: UUIDs or PCI "
        "addresses, with commas"
    ),
    "simulated_gpus": "simulated devices of this agent",
    "simulated_model": "their model name",
    "simulated_memory_gib": "their memory each",
    "keep_hours": "node: how long the output of an ended job stays there",
    "keep_bytes": (
        "node: bytes of such output that are kept; the tenant with the most loses its oldest first"
    ),
    "keep_jobs": "node: of how many ended jobs",
    "tail_hours": (
        "how long the last 64 KiB of a job's output are kept off its node; counts when the "
        "cluster begins"
    ),
    "tail_bytes": "how many bytes of them together; counts when the cluster begins",
    "release_ms": (
        "node: how long a device may take to be proved clean after its job; then it is quarantined"
    ),
    "driver_answer_ms": (
        "node: time for the GPU drivers to answer; a device that is silent twice is out of use "
        "until it answers"
    ),
    "driver_begin_ms": (
        "node: time for the first call into a driver and on each device: it takes seconds "
        "without persistence mode"
    ),
    "driver_reset_s": (
        "node: how long a reset may take; meanwhile the vendor's other devices are not asked either"
    ),
    "sample_ms": "node: how often its real devices are asked how they are; 10 is possible",
    "alive_file": (
        "file that a service touches every few seconds while it makes progress; empty: none"
    ),
    "metrics_host": (
        "node: address on which its devices' metrics are served to Prometheus, to whoever "
        "reaches it"
    ),
    "metrics_port": (
        "node: port of that; muster up gives its nodes this one and those after it; 0: they are "
        "not served"
    ),
    "probe_ms": "node: how long a replica may take to answer on its health path",
    "kernel_log": "node: the kernel's log, where errors of devices are read",
    "health_catalogue": "node: what errors of devices mean: nvidia-guidance or platform-design",
    "health_site": (
        "node: what else they mean where the catalogue leaves it open: xid 74=reset, xid "
        "144=replace"
    ),
    "health_shadow": "node: 1: only say what would be done about an error of a device",
    "health_breaker_percent": (
        "node: while more of its devices than this (and more than one) came to need a repair, "
        "none is reset"
    ),
    "health_breaker_s": "node: ... within so long",
    "health_pause_c": "node: degrees from which a device takes no new work",
    "health_resume_c": "node: degrees below which it does again",
    "health_hot": (
        "node: what it is told meanwhile, in percent of the most that it takes: "
        "nvidia=power:60,*=clocks:50; empty: nothing"
    ),
    "health_corrected_max": (
        "node: more corrected memory errors of one device than this are told of"
    ),
    "health_link_errors_max": (
        "node: ... and than this of its direct links, or of packets sent again over PCIe"
    ),
    "health_corrected_window_s": "node: ... within so long",
    "mps_control": (
        "node: the control program of NVIDIA's MPS: a path, or a name that is looked for in PATH"
    ),
    "mps_start_ms": (
        "node: how long an MPS daemon may take to answer before the job that needs it is refused"
    ),
    "mps_quit_ms": "node: how long it may take to quit before it is killed",
    "container_engine": (
        "node: socket of Docker or Podman for jobs with an image; empty: where they usually are"
    ),
    "preflight": "node: 1: a job's devices are looked at before it starts; 0: they are not",
    "burn_in": (
        "node: a command that tries a device ($MUSTER_GPUS) which comes back from a reset or a "
        "quarantine; empty: none"
    ),
    "burn_in_ms": "node: how long it may take; then it has failed",
    "scrub": (
        "node: how a device's memory is cleared at its release: reset, or a command that fills "
        "it ($MUSTER_GPUS); empty: it is not"
    ),
    "scrub_ms": "node: how long that command may take",
    "share_grace_s": (
        "node: how long a job may use more of a device's memory than its plain part, once "
        "warned; 0: it is only warned"
    ),
    "execs_per_job": (
        "agent: how many processes of `muster exec` may run beside one job, at most 32; 0: none"
    ),
    "cgroup": (
        "agent: the control group below which each job is in one of its own, from the root of "
        "each hierarchy; empty: none"
    ),
    "job_users": (
        "Unix user that jobs run as, WHO=UNIXUSER, with commas (team/ann=ann,lab/*=lab,*=jobs); "
        "self: the agent's own user"
    ),
    "tenant_uids": (
        "Unix user ids for jobs of tenants that job_users does not name, FIRST-LAST (agents of "
        "root)"
    ),
    "tenant_uid_table": "table of the user id that each tenant has on this machine",
    "log_level": "DEBUG, INFO, WARNING or ERROR",
    "record_ms": "gateway: how long an answer waits until the log has taken what was asked",
    "settle_ms": "gateway: how long a read waits for its min_seq",
    "ask_ms": "gateway: how long the scheduler or a node may take to answer a question",
    "ask_past_ms": (
        "gateway, scheduler: the same where it takes a proof (why, whatif), or the log is folded "
        "again"
    ),
    "stdin_ms": "gateway: how long a node may take to take a job's input",
    "keepalive_ms": "gateway: how often a stream says that it is still there",
    "wait_max_ms": "gateway: longest timeout that a wait for a job may ask for",
    "gateway_stop_ms": "gateway: how long open streams may go on once it was told to stop",
    "gateway_head_ms": "gateway: time for a client to connect and to send a request's "
    "line and headers, the rest of a body after its answer, or a WebSocket's handshake",
    "ready_silence_ms": "gateway: not ready when the log was not heard for so long",
    "ready_lag_commits": "gateway: not ready when it is so many commits behind the log",
    "log_connect_ms": (
        "every service: how long a NATS server may take to accept the first connection"
    ),
    "log_append_ms": (
        "gateway, quota, scheduler: a process gives up when the log took no commit for so long "
        "(an election: 4 to 9 s)"
    ),
    "up_ready_ms": "muster up: how long the gateway may take to be ready before it is named",
    "up_stop_ms": "muster up: how long a service may take to stop before it is killed",
}


# The YAML file that a setting stands in; what is in no other row stands in cluster.yaml.
FILES: Final[dict[str, tuple[str, ...]]] = {
    "cluster": (),
    "security": ("nkey_seed_file", "api_keys_file", "trimmer_seed_file", "trimmer_key_file"),
    "monitoring": (
        "log_level",
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
        ),
        *(
            "record_ms",
            "settle_ms",
            "ask_ms",
            "ask_past_ms",
            "stdin_ms",
            "keepalive_ms",
            "wait_max_ms",
            "gateway_stop_ms",
            "gateway_head_ms",
            "log_connect_ms",
        ),
        *("log_append_ms", "up_ready_ms", "up_stop_ms", "keep_hours", "keep_bytes", "keep_jobs"),
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
        *("model_requests_max", "model_body_bytes", "model_answer_bytes", "model_output_tokens"),
    ),
}


def file_of(name: str) -> str:
    """The YAML file, without its ending."""
    return next((stem for stem, names in FILES.items() if name in names), "cluster")


def environment(settings: Settings) -> dict[str, str]:
    """What to put into a child's environment."""
    return {
        PREFIX + name.upper(): str(value)
        for name, value in msgspec.structs.asdict(settings).items()
    }


def checked(name: str, raw: object) -> tuple[Any, str]:
    """A value as its setting needs it, or what is wrong with it.

    The value itself is not said: it may be a secret.
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
        else (None, f"{variable}={number} must be from {low} to {high}")
    )


def _checked_text(name: str, variable: str, raw: object) -> tuple[str, str]:
    if not isinstance(raw, str | None):
        return "", f"{variable} must be a text: put it in quotes"
    text = raw or ""
    if name == "log_level":
        text = text.upper()
        if text not in LOG_LEVELS:
            return "", f"{variable} must be one of {', '.join(LOG_LEVELS)}"
    return text, ""


def shown(name: str, value: object) -> str:
    """A value for people: the password in an address is not shown."""
    text = str(value)
    if name in ("nats", "audit_url") and "@" in text:
        return ",".join(_without_password(part) for part in text.split(","))
    return text


def _without_password(url: str) -> str:
    try:
        password = urlsplit(url).password
    except ValueError:
        return HIDDEN
    head, _, host = url.rpartition("@")
    return f"{head[: len(head) - len(password)]}{HIDDEN}@{host}" if password else url
