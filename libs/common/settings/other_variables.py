"""The MUSTER_* variables that are no settings of a service (`settings.py`). docs/settings.md has
them too.
"""

from typing import Final

# MUSTER_* variables that are no settings of a service: what a command or a job reads.
ELSEWHERE: Final = {
    "MUSTER_CONFIG_DIR": "directory of the YAML files; empty: none is read",
    "MUSTER_ENV_FILE": "the .env file; empty: none is read",
    "MUSTER_URL": "the gateway that commands speak to",
    "MUSTER_API_KEY": "the key that they show it",
    "MUSTER_PROFILE": "the file where both stand otherwise",
    "MUSTER_AWAY_S": (
        "how many seconds commands that stay with a job (run, logs -f, wait) look for a gateway "
        "that is gone; default 120"
    ),
    "MUSTER_TRACES": "the folder where `muster simulate` and bench/ find traces of jobs",
    "MUSTER_USER": "the user that a submitted job names; in a job: who asked for it",
    "MUSTER_JOB_ID": "in a job: its id",
    "MUSTER_JOB_NAME": "in a job: its name",
    "MUSTER_JOB_DIR": "in a job: its directory on the node",
    "MUSTER_ATTEMPT": "in a job: which attempt this is, its fencing token",
    "MUSTER_ARRAY_ID": "in an element of an array: the array's id",
    "MUSTER_ARRAY_TASK_ID": "in an element of an array: its number",
    "MUSTER_RANK": "in a job: which of its nodes this is",
    "MUSTER_WORLD_SIZE": "in a job: how many nodes it has",
    "MUSTER_MIN_NODES": "in a job: with how many it goes on at least",
    "MUSTER_MAX_NODES": "in a job: how many it may be given by another attempt",
    "MUSTER_GPUS": "in a job: the devices that it holds here",
    "MUSTER_GPU_PCI": (
        "in a command of MUSTER_BURN_IN or MUSTER_SCRUB: the address of the device on its bus"
    ),
    "MUSTER_GPU_SHARE": "in a job: hundredths of each",
    "MUSTER_TENANT": "in a job: its tenant",
    "MUSTER_PEERS": "in a job: its nodes and their addresses",
    "MUSTER_PORT": (
        "in a job: the port that it was given; in containers: the first gateway's published one"
    ),
    "MUSTER_PORT_B": "in containers: the second gateway's",
    "MUSTER_PUBLISH": "in containers: the address on which the gateways are published",
    "MUSTER_LISTEN": "in containers: the address at which other machines join",
    "MUSTER_JOIN_PORT": "in containers: the port of that",
    "MUSTER_NATS_PORT_1": (
        "in containers: the published port of the first NATS server, for other machines"
    ),
    "MUSTER_NATS_PORT_2": "in containers: of the second",
    "MUSTER_NATS_PORT_3": "in containers: of the third",
    "MUSTER_IMAGE": "in containers: the image of all but PostgreSQL",
    "MUSTER_POSTGRES_IMAGE": "in containers: PostgreSQL's",
    "MUSTER_SHM_SIZE": "in containers: the size of /dev/shm of a node with real devices",
    "MUSTER_RENDER_GID": "in containers: the group of /dev/dri/render*",
}
