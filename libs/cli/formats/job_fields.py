"""The keys of a job file and their types.

This table checks types while the line is still known; the gateway checks values and combinations.
`jobfile.py` reads YAML and `jobflags.py` reads flags; both give the same JSON for POST /v1/jobs.
`sbatch.py` and `kubernetes.py` read the formats of other systems.
"""

from typing import Any, Final, NamedTuple

from libs.common.model import LEVELS

TEXT: Final = "a string"
WHOLE: Final = "a whole number"
NUMBER: Final = "a number"
TRUTH: Final = "true or false"
TEXTS: Final = "a mapping of names to strings"
NAMES: Final = "a list of strings, or one string"
NODES: Final = "a number of nodes, or a range such as 2..8"
MOUNTS: Final = "a list of mounts such as /data/sets:/data:ro"
SIZE: Final = "a number of bytes, or a size such as 40GiB"
COMMAND: Final = "a list of arguments, or a string for /bin/sh -c"
DURATION: Final = "a duration such as 90, 1h30m or 1-12:00:00"


class Field(NamedTuple):
    """The type of a key, and its name in the gateway's JSON (`wire`)."""

    form: str
    wire: str


class Written(NamedTuple):
    """A job for the gateway, its place in a file (`job.yaml:12`), and the warnings about it."""

    place: str
    job: dict[str, Any]
    warnings: tuple[str, ...] = ()


FIELDS: Final[dict[str, Field]] = {
    "command": Field(COMMAND, "command"),
    "name": Field(TEXT, "name"),
    "workdir": Field(TEXT, "workdir"),
    "upload": Field(TEXT, "upload"),
    "image": Field(TEXT, "image"),
    "entrypoint": Field(NAMES, "container.entrypoint"),
    "container_user": Field(TEXT, "container.user"),
    "container_workdir": Field(TEXT, "container.workdir"),
    "mounts": Field(MOUNTS, "container.mounts"),
    "caches": Field(NAMES, "container.caches"),
    "shm_size": Field(SIZE, "container.shm_bytes"),
    "env": Field(TEXTS, "env"),
    "secrets": Field(TEXTS, "secrets"),
    "nodes": Field(NODES, "nodes"),
    "nodes_max": Field(WHOLE, "nodes_max"),
    "gpus": Field(WHOLE, "gpus"),
    "fraction": Field(NUMBER, "fraction"),
    "gpu_share": Field(WHOLE, "gpu_share"),
    "priority": Field(WHOLE, "priority"),
    "time_limit": Field(DURATION, "time_limit_s"),
    "time_limit_s": Field(WHOLE, "time_limit_s"),
    "hang_timeout": Field(DURATION, "hang_timeout_s"),
    "start": Field(DURATION, "start_s"),
    "start_s": Field(WHOLE, "start_s"),
    "grace": Field(DURATION, "grace_s"),
    "grace_s": Field(WHOLE, "grace_s"),
    "retries": Field(WHOLE, "retries"),
    "requeue": Field(TRUTH, "requeue"),
    "stdin": Field(TRUTH, "stdin"),
    "labels": Field(TEXTS, "labels"),
    "output_limit_bytes": Field(WHOLE, "output_limit_bytes"),
    "reject_if_impossible": Field(TRUTH, "reject_if_impossible"),
    "on_control_loss": Field(TEXT, "on_control_loss"),
    "user": Field(TEXT, "user"),
    "queue": Field(TEXT, "queue"),
    "deadline": Field(TEXT, "deadline"),
    "estimate": Field(DURATION, "estimate_s"),
    "after": Field(NAMES, "after"),
    "singleton": Field(TRUTH, "singleton"),
    "hold": Field(TRUTH, "hold"),
    "array": Field(TEXT, "array"),
    "short": Field(TRUTH, "short"),
    "preemptible": Field(TRUTH, "preemptible"),
    "checkpoint_grace": Field(DURATION, "checkpoint_grace_s"),
    "checkpoint_signal": Field(TEXT, "checkpoint_signal"),
    "min_run": Field(DURATION, "min_run_s"),
    "reservation": Field(TEXT, "reservation"),
    "cpus": Field(NUMBER, "cpus"),
    "memory": Field(SIZE, "memory"),
    "pool": Field(SIZE, "pool"),
    "host_pool": Field(SIZE, "host_pool"),
    "gpu_memory": Field(SIZE, "gpu_memory"),
    "gpu_memory_min": Field(SIZE, "gpu_memory_min"),
    "model": Field(NAMES, "model"),
    "vendor": Field(TEXT, "vendor"),
    "compute_capability": Field(TEXT, "compute_capability"),
    "mig_profile": Field(TEXT, "mig_profile"),
    "isolation": Field(TEXT, "isolation"),
    "node_labels": Field(TEXTS, "node_labels"),
    "node_list": Field(NAMES, "node_list"),
    "gpu_uuids": Field(NAMES, "gpu_uuids"),
    "anti_affinity": Field(TEXTS, "anti_affinity"),
    **{level: Field(TEXT, level) for level in LEVELS},
    "allow_cross_numa": Field(TRUTH, "allow_cross_numa"),
    "placement": Field(TEXT, "placement"),
    "mixed": Field(TRUTH, "mixed"),
    "preflight": Field(TRUTH, "preflight"),
    "scheduling_policy": Field(TEXT, "scheduling_policy"),
}

SHELL: Final = ("/bin/sh", "-c")
