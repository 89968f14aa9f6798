"""The processes of an embedded cluster: the command, environment and files of each."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from libs.common.messages.admission import Admitted
from libs.common.settings import configuration, settings
from libs.common.settings.settings import Settings
from libs.embedded import certificate_files, identity, nats_config, permissions, servers
from libs.embedded.permissions import AUDIT, TRIMMER
from libs.embedded.processes import Spec
from libs.embedded.shape import INSTANCES, LOCAL_NODE, Shape

SERVER: Final = "nats-server"
SCHEDULER: Final = "scheduler"
QUOTA: Final = "quota"
GATEWAY: Final = "gateway"
# Signs the heads of the audit chain. The NATS server does not know this key.
AUDIT_HEADS_KEY: Final = "audit-heads"
# Number of simulated nodes in one rack.
RACK_NODES: Final = 4
# Default of MUSTER_JOB_USERS: jobs of the default tenant run as the user who started the cluster.
OWN_USER: Final = "default/*=self"
# Variables of the exporter of spans (libs/common/spans/exporting.py).
OTLP_VARIABLES: Final = (
    "OTEL_RESOURCE_ATTRIBUTES",
    *(
        f"OTEL_EXPORTER_OTLP_{name}"
        for name in ("ENDPOINT", "TRACES_ENDPOINT", "HEADERS", "COMPRESSION", "CERTIFICATE")
    ),
    *("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_KEY"),
)
# Variables that a child process inherits beside its own MUSTER_* variables.
PASSED_ON: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV",
    "PYTHONPATH", "LD_LIBRARY_PATH", *OTLP_VARIABLES,
)  # fmt: skip
# Further variables of every child. The launcher has read the configuration files; they must not
# change what it decided.
ALONE: Final = {"PYTHONUNBUFFERED": "1", configuration.CONFIG_DIR: "", configuration.ENV_FILE: ""}


def logs(state: Path) -> Path:
    return state / "logs"


def configure(state: Path, shape: Shape, found: Admitted) -> dict[str, str]:
    """Write the server's file with the launcher's nodes and these joined ones.

    Return the joined nodes that the file leaves out, with the reason.
    """
    keys = state / "keys"
    server = nats_config.Server(SERVER, shape.nats_port, str(state / "nats"), shape.log_bytes)
    if shape.listen:
        certificate, key = (
            certificate_files.certificate_file(keys, certificate_files.SERVER),
            certificate_files.key_file(keys, certificate_files.SERVER),
        )
        server = msgspec.structs.replace(
            server, listen=shape.listen, certificate=str(certificate), key=str(key)
        )
    return servers.write_config(state, server, shape.fleet, found)


def server(state: Path, config: Path, nodes: int) -> Spec:
    """Return the server of a cluster of so many nodes, those of other machines included."""
    environment = _inherited_variables(os.environ) | servers.environment(nodes)
    return Spec(
        SERVER, [servers.binary(), "-c", str(config)], environment, logs(state) / f"{SERVER}.log"
    )


def control_plane(state: Path, shape: Shape, environ: Mapping[str, str] = os.environ) -> list[Spec]:
    """Return scheduler, quota, audit and gateways.

    The caller's MUSTER_* variables (times, log level) apply, except for those that the launcher
    decides.
    """
    base = _base(state, shape, environ)
    filled = msgspec.structs.replace(
        base, stream_bytes=shape.log_bytes, cluster_id=shape.cluster_id
    )
    keys = str(identity.api_keys_file(state / "keys"))
    vault = str(identity.vault_key_file(state / "keys"))
    audit = msgspec.structs.replace(
        base,
        cluster_id=shape.cluster_id,
        audit_stream_bytes=min(base.audit_stream_bytes, shape.log_bytes // 4),
        trimmer_seed_file=str(identity.seed_file(state / "keys", TRIMMER)),
        audit_key_file=str(identity.seed_file(state / "keys", AUDIT_HEADS_KEY)),
    )
    outside = msgspec.structs.replace(
        filled, gateway_host=shape.host, api_keys_file=keys, vault_key_file=vault
    )
    services = (
        (SCHEDULER, "services.scheduler", filled, shape.schedulers),
        (QUOTA, "services.quota", base, shape.quotas),
        (AUDIT, "services.audit", audit, shape.audits),
    )
    return [
        *(
            _member(state, name, module=module, number=number, base=settings, environ=environ)
            for name, module, settings, count in services
            for number in range(count)
        ),
        *(
            _gateway(state, shape, number=number, base=outside, environ=environ)
            for number in range(shape.gateways)
        ),
    ]


def members(name: str, count: int) -> list[str]:
    """Return the names of the processes of a service; the first is the service's own."""
    return [name, *(f"{name}-{instance}" for instance in INSTANCES[1:count])]


def _member(
    state: Path, name: str, module: str, number: int, base: Settings, environ: Mapping[str, str]
) -> Spec:
    """Return one process of a service of which one leads. Audits share one archive."""
    own = members(name, number + 1)[number]
    return _service(
        state=state,
        name=own,
        key=name,
        module=module,
        process_settings=msgspec.structs.replace(base, instance=INSTANCES[number]),
        environ=environ,
        folder=name if name == AUDIT else own,
    )


def gateways(shape: Shape) -> list[str]:
    """Return the names of the gateways; the first is `gateway`."""
    return [GATEWAY, *map(permissions.gateway_name, shape.fleet.gateways[1:])]


def _gateway(
    state: Path, shape: Shape, number: int, base: Settings, environ: Mapping[str, str]
) -> Spec:
    """Return one gateway. Each has its own ports; other machines join at the first."""
    instance = shape.fleet.gateways[number]
    process_settings = msgspec.structs.replace(
        base,
        instance=instance,
        gateway_port=shape.port + number,
        gateway_tls_port=base.gateway_tls_port + number,
    )
    process_settings = _with_grpc(shape, number, process_settings)
    if not number:
        process_settings = _outside(state, shape, process_settings)
    return _service(
        state=state,
        name=gateways(shape)[number],
        key=permissions.gateway_name(instance),
        module="services.api_gateway",
        process_settings=process_settings,
        environ=environ,
    )


def _with_grpc(shape: Shape, number: int, base: Settings) -> Settings:
    """Add the listener of gRPC, unless its port was taken at the start."""
    if not shape.grpc_port:
        return msgspec.structs.replace(base, gateway_grpc_host="")
    return msgspec.structs.replace(
        base,
        gateway_grpc_host=base.gateway_grpc_host or shape.host,
        gateway_grpc_port=shape.grpc_port + number,
    )


def _outside(state: Path, shape: Shape, base: Settings) -> Settings:
    """Add the TLS listener at which other machines join, if the cluster listens to any."""
    if not shape.listen:
        return base
    keys = state / "keys"
    files = {
        "tls_ca_file": str(certificate_files.certificate_file(keys, certificate_files.AUTHORITY)),
        "tls_cert_file": str(certificate_files.certificate_file(keys, certificate_files.SERVER)),
        "tls_key_file": str(certificate_files.key_file(keys, certificate_files.SERVER)),
    }
    return msgspec.structs.replace(base, gateway_tls_host=shape.listen, **files)


def agents(state: Path, shape: Shape, environ: Mapping[str, str] = os.environ) -> list[Spec]:
    base = msgspec.structs.replace(
        _base(state, shape, environ), simulated_gpus=shape.gpus, simulated_model=shape.model
    )
    base = msgspec.structs.replace(base, job_users=base.job_users or OWN_USER)
    return [
        _service(
            state=state,
            name=each,
            key=permissions.node_name(each),
            module="services.node_agent",
            process_settings=_node(base, index, each),
            environ=environ,
        )
        for index, each in enumerate(shape.fleet.nodes)
    ]


def _node(base: Settings, index: int, node_id: str) -> Settings:
    """Return the settings of one agent.

    All are on one machine, so each has its own metrics port.
    """
    process_settings = msgspec.structs.replace(
        base, node_id=node_id, metrics_port=base.metrics_port and base.metrics_port + index
    )
    if node_id == LOCAL_NODE:
        return msgspec.structs.replace(process_settings, gpu_driver="local")
    return msgspec.structs.replace(
        process_settings, node_rack=f"rack-{index // RACK_NODES + 1}", node_spine="spine-1"
    )


def _base(state: Path, shape: Shape, environ: Mapping[str, str]) -> Settings:
    trimmer = str(identity.public_file(state / "keys", TRIMMER))
    base = msgspec.structs.replace(
        configuration.read(environ=environ),
        nats=shape.nats,
        stream_replicas=1,
        trimmer_key_file=trimmer,
    )
    if not shape.listen:
        return base
    authority = certificate_files.certificate_file(state / "keys", certificate_files.TRUSTED)
    return msgspec.structs.replace(base, nats_ca_file=str(authority), node_address=shape.listen)


def _service(
    state: Path,
    name: str,
    key: str,
    module: str,
    process_settings: Settings,
    environ: Mapping[str, str],
    folder: str = "",
) -> Spec:
    """Return one service. `name` is in its file names and in messages, `key` names its nkey.

    Its environment holds only settings that differ from their defaults. `folder` is its state
    directory if another process shares it.
    """
    own = state / "services" / (folder or name)
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = msgspec.structs.replace(
        process_settings,
        nkey_seed_file=str(identity.seed_file(state / "keys", key)),
        state=str(own),
    )
    defaults = settings.environment(Settings())
    changed = {
        variable: value
        for variable, value in settings.environment(found).items()
        if value != defaults[variable]
    }
    return Spec(
        name,
        [sys.executable, "-m", module],
        _inherited_variables(environ) | changed,
        logs(state) / f"{name}.log",
    )


def _inherited_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in PASSED_ON if name in environ} | ALONE
