"""MUSTER_* variables that are not settings of a service: commands, jobs and containers read them.

docs/settings.md lists them after the settings (`settings.py`).
"""

from typing import Final

# Each variable with its meaning.
ELSEWHERE: Final = {
    "MUSTER_CONFIG_DIR": "Directory of the YAML files. Empty: none are read.",
    "MUSTER_ENV_FILE": "Path of the .env file. Empty: none is read.",
    "MUSTER_URL": "Commands: address of the gateway. Set MUSTER_API_KEY too.",
    "MUSTER_API_KEY": "Commands: API key.",
    "MUSTER_PROFILE": "Commands: file with the address and the key if the variables are not set.",
    "MUSTER_AWAY_S": (
        "Commands that follow a job (run, logs -f, wait): seconds to look for a gateway that does "
        "not answer. Default 120."
    ),
    "MUSTER_BACKUP_KEY_FILE": "`muster backup` and `muster restore`: file with the operator's key.",
    "MUSTER_TRACES": "`muster simulate` and bench/: directory with traces of jobs.",
    "MUSTER_USER": "Commands: user of a submitted job. In a job: the user who submitted it.",
    "MUSTER_JOB_ID": "In a job: its id.",
    "MUSTER_JOB_NAME": "In a job: its name.",
    "MUSTER_JOB_DIR": "In a job: its directory on the node.",
    "MUSTER_ATTEMPT": "In a job: number of the attempt, the fencing token.",
    "MUSTER_ARRAY_ID": "In an element of an array: id of the array.",
    "MUSTER_ARRAY_TASK_ID": "In an element of an array: its number.",
    "MUSTER_RANK": "In a job: rank of this node, from 0.",
    "MUSTER_WORLD_SIZE": "In a job: number of its nodes.",
    "MUSTER_MIN_NODES": "In a job: smallest number of nodes that an attempt may have.",
    "MUSTER_MAX_NODES": "In a job: largest number of nodes that an attempt may have.",
    "MUSTER_GPUS": "In a job: UUIDs of its devices on this node.",
    "MUSTER_GPU_PCI": (
        "In a command of MUSTER_BURN_IN or MUSTER_SCRUB: PCI address of the device."
    ),
    "MUSTER_COMMAND_ID": (
        "In a command of MUSTER_BURN_IN or MUSTER_SCRUB: marks its processes. The agent ends them "
        "with it."
    ),
    "MUSTER_GPU_SHARE": "In a job: its fraction of each device, in hundredths.",
    "MUSTER_TENANT": "In a job: its tenant.",
    "MUSTER_PEERS": "In a job: its nodes and their addresses.",
    "MUSTER_HOST": "In a replica: the address of its node, for its server to listen on.",
    "MUSTER_REPLICA_KEY": "In a replica with {key} in its environment: the key that gateways send.",
    "MUSTER_PORT": (
        "In a job: the port assigned to it. For docker compose: published port of the first "
        "gateway."
    ),
    "MUSTER_PORT_B": "For docker compose: published port of the second gateway.",
    "MUSTER_GRPC_PORT": "For docker compose: published port for gRPC of the first gateway.",
    "MUSTER_GRPC_PORT_B": "For docker compose: published port for gRPC of the second gateway.",
    "MUSTER_PUBLISH": "For docker compose: address on which the gateways are published.",
    "MUSTER_LISTEN": "For docker compose: address at which other machines join.",
    "MUSTER_JOIN_PORT": "For docker compose: port at which other machines join.",
    "MUSTER_NATS_PORT_1": (
        "For docker compose: published port of the first NATS server, for other machines."
    ),
    "MUSTER_NATS_PORT_2": "For docker compose: the same for the second NATS server.",
    "MUSTER_NATS_PORT_3": "For docker compose: the same for the third NATS server.",
    "MUSTER_IMAGE": "For docker compose: image of all services except PostgreSQL.",
    "MUSTER_POSTGRES_IMAGE": "For docker compose: image of PostgreSQL.",
    "MUSTER_OBSERVE_PUBLISH": "For docker compose: address of the profile observe's pages.",
    "MUSTER_PROMETHEUS_PORT": "For docker compose: published port of Prometheus.",
    "MUSTER_GRAFANA_PORT": "For docker compose: published port of Grafana.",
    "MUSTER_GRAFANA_PASSWORD": "For docker compose: password of Grafana's user admin.",
    **{
        f"MUSTER_{name.upper()}_IMAGE": f"For docker compose: image of the {what}."
        for name, what in (
            ("collector", "OpenTelemetry collector"),
            ("tempo", "trace store"),
            ("prometheus", "profile observe's Prometheus"),
            ("grafana", "profile observe's Grafana"),
        )
    },
    "MUSTER_SHM_SIZE": "For docker compose: size of /dev/shm on a node with real devices.",
    "MUSTER_RENDER_GID": "For docker compose: group id of /dev/dri/render*.",
}
