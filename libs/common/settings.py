"""Every process's settings: environment variables MUSTER_*, each with a default that runs on a laptop.

One table for all services; docs/settings.md is generated from it and tests/test_docs.py holds that none is missing.
What both ends of a lease must agree on is a fact (`Timing` in ClusterConfigured), not a setting: the MUSTER_*_MS values
here only fill the first such fact.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from libs.common.errors import Refused

PREFIX = "MUSTER_"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The environment variable of a field is its upper-case name with MUSTER_ before it; HELP gives its meaning."""

    nats: str = "nats://127.0.0.1:4222"
    nkey_seed_file: str = ""
    state: str = ".muster"
    instance: str = "a"
    cluster_id: str = "local"
    stream_replicas: int = 1
    stream_bytes: int = 8 << 30
    heartbeat_ms: int = 1_000
    lease_ms: int = 13_000
    margin_ms: int = 1_500
    term_ms: int = 3_000
    stop_lease_ms: int = 600_000
    gateway_host: str = "127.0.0.1"
    gateway_port: int = 8080
    api_keys_file: str = ""
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
    audit_url: str = ""
    audit_begin: int = 1
    trimmer_seed_file: str = ""
    trim_keep_commits: int = 100_000
    trim_keep_hours: int = 72
    trim_full_percent: int = 60
    trim_every_s: int = 60
    node_id: str = ""
    node_address: str = "127.0.0.1"
    simulated_gpus: int = 8
    simulated_model: str = "Simulated H100"
    simulated_memory_gib: int = 80
    log_level: str = "INFO"

    @property
    def servers(self) -> list[str]:
        return [server.strip() for server in self.nats.split(",") if server.strip()]

    @property
    def nkey_seed(self) -> bytes | None:
        """The process's own seed; None when no file is named (a server without authentication: tests)."""
        return Path(self.nkey_seed_file).read_bytes().strip() if self.nkey_seed_file else None

    @property
    def trimmer_seed(self) -> bytes | None:
        """The trimmer's own seed; None when no file is named."""
        return Path(self.trimmer_seed_file).read_bytes().strip() if self.trimmer_seed_file else None

    @property
    def audit_database(self) -> str:
        """The archive's SQLAlchemy URL; an SQLite file in the state directory unless MUSTER_AUDIT_URL says otherwise."""
        return self.audit_url or f"sqlite:///{Path(self.state).resolve() / 'audit.db'}"


HELP = {
    "nats": "NATS servers, comma-separated",
    "nkey_seed_file": "file with this process's nkey seed (mode 0600)",
    "state": "directory for this process's own files",
    "instance": "gateway instance id: one live writer each",
    "cluster_id": "name of the cluster, recorded once",
    "stream_replicas": "replicas of the log: 1 embedded, 3 in a cluster",
    "stream_bytes": "bound of the log in bytes; submissions are refused at 80 %",
    "heartbeat_ms": "first ClusterConfigured: how often an agent reports",
    "lease_ms": "first ClusterConfigured: how long a node may run on unheard",
    "margin_ms": "first ClusterConfigured: added silence before a node is lost",
    "term_ms": "first ClusterConfigured: how long a scheduler's leadership write counts",
    "stop_lease_ms": "lease that a planned stop leaves behind",
    "gateway_host": "address that the gateway listens on",
    "gateway_port": "port that the gateway listens on",
    "api_keys_file": "file of accepted API keys as SHA-256 hex, one a line; empty accepts none",
    "model_connect_ms": "how long a replica of a model may take to accept a connection",
    "model_answer_ms": "how long it may take to answer; of a stream: to its first event",
    "model_idle_ms": "how long a stream of a model may say nothing",
    "model_body_ms": "how long a client may take to send the body of an OpenAI request",
    "model_keepalive_ms": "how long an idle connection to a replica is kept; keep it under the replica's own bound",
    "model_attempts": "replicas tried for one request while the client has been sent nothing",
    "model_requests_max": "OpenAI requests that may be open at once in one gateway",
    "model_body_bytes": "largest body of an OpenAI request",
    "model_answer_bytes": "largest answer of a model that is not a stream",
    "model_output_tokens": "max_tokens of a request that names none and counts against a token limit",
    "audit_url": "archive database (SQLAlchemy URL); default SQLite in the state directory",
    "audit_begin": "first commit of an empty archive; above 1 only when the log was trimmed and the archive before it is lost for ever",
    "trimmer_seed_file": "file with the nkey seed that may trim the log (audit's process); empty: the log is never trimmed",
    "trim_keep_commits": "so many of the latest commits are never trimmed; below 100000 a restarted gateway may know less history",
    "trim_keep_hours": "older commits leave the log for the archive; below this age only when the log is too full",
    "trim_full_percent": "over this part of MUSTER_STREAM_BYTES younger commits leave the log too",
    "trim_every_s": "how often it is looked whether something can be trimmed",
    "node_id": "this node's name, [a-z0-9-]{1,63}",
    "node_address": "address under which other nodes reach this one (MASTER_ADDR)",
    "simulated_gpus": "simulated devices of this agent",
    "simulated_model": "their model name",
    "simulated_memory_gib": "their memory each",
    "log_level": "DEBUG, INFO, WARNING or ERROR",
}


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this process. Raises Refused naming a variable that cannot be read as what it must be."""
    values: dict[str, str | int] = {}
    for field in msgspec.structs.fields(Settings):
        text = environ.get(PREFIX + field.name.upper())
        if text is not None:
            values[field.name] = _parse(field.name, text, field.type)
    return msgspec.convert(values, Settings)


def environment(settings: Settings) -> dict[str, str]:
    """The other way round: what to put into a child's environment."""
    return {PREFIX + name.upper(): str(value) for name, value in msgspec.structs.asdict(settings).items()}


def _parse(name: str, text: str, kind: object) -> str | int:
    if kind is not int:
        return text
    try:
        return int(text)
    except ValueError as error:
        raise Refused(f"{PREFIX}{name.upper()}={text!r} must be a whole number") from error
