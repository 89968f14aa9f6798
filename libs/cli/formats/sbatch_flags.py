"""The flags of `#SBATCH` lines: those that a job honours, and what to use instead of the others.

Tables only, for `sbatch.py`.
"""

from typing import Final

from libs.cli.formats.pools import POOLS
from libs.cli.formats.sbatch_container import OWN as OF_CONTAINERS

SHORT: Final = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint",
    "c": "cpus-per-task", "D": "chdir",
    "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "i": "input",
    "J": "job-name", "k": "no-kill",
    "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks",
    "O": "overcommit", "o": "output",
    "p": "partition", "Q": "quiet", "q": "qos", "S": "core-spec", "s": "oversubscribe", "t": "time",
    "v": "verbose", "W": "wait",
    "w": "nodelist", "x": "exclude",
}  # fmt: skip

# Flags that never take a value, and those that take one after "=" only.
ALONE: Final = (
    "contiguous", "hold", "no-kill", "no-requeue", "overcommit", "oversubscribe", "parsable",
    "quiet", "requeue", "spread-job",
    "test-only", "use-min-nodes", "verbose", "wait",
    "container-entrypoint", "no-container-entrypoint", "container-mount-home",
    "no-container-mount-home", "container-writable", "container-readonly", "container-remap-root",
    "no-container-remap-root",
)  # fmt: skip
MAY_TAKE: Final = ("exclusive", "get-user-env", "nice", "propagate", "reboot")

HONOURED: Final = (
    "job-name", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu", "gpus",
    "gpus-per-node", "gpus-per-task", "gres",
    "mem", "mem-per-cpu", "mem-per-gpu", "time", "chdir", "nodelist", "requeue", "no-requeue",
    "export", "switches", "dependency", "hold",
    "array", "reservation",
    "container-image", "container-mounts", "container-workdir", "container-entrypoint",
    "no-container-entrypoint", "no-container-mount-home", "container-writable", "container-env",
)  # fmt: skip

# Flags of `#MUSTER` lines. For Slurm such a line is a comment.
OWN: Final = (*POOLS, *OF_CONTAINERS)

_OUTPUT: Final = "Muster keeps the output: use muster logs JOB"
_TENANT: Final = "your key determines the tenant, the user and the limits"
_BINDING: Final = (
    "a job sees only its own GPUs; for their topology, use --numa, --switch or --interconnect of "
    "muster submit"
)
_MAIL: Final = "mail is not set for one job: use muster notify add NAME --mail ADDRESS"

NOT_HONOURED: Final = {
    "account": _TENANT,
    "begin": "use --hold, and release it later with muster release JOB",
    "clusters": "choose the cluster with MUSTER_URL or muster login",
    "comment": "use a label: muster submit --label",
    "constraint": "use node labels: muster submit --node-label K=V",
    "container": "bundles of OCI are not read: give an image with --container-image",
    "container-mount-home": "a container sees only what --container-mounts names",
    "container-name": "each job gets a container of its own",
    "container-readonly": "the container's own files are writable, and go with it",
    "container-remap-root": "the node decides which users a container may have: #MUSTER --user=UID",
    "container-save": "build an image, and push it to a registry",
    "contiguous": "--rack required of muster submit keeps nodes together",
    "core-spec": _BINDING,
    "cores-per-socket": _BINDING,
    "deadline": (
        "Slurm ends the job at this time; muster submit --deadline only orders a queue with the "
        "policy deadline"
    ),
    "delay-boot": "Muster does not boot nodes for a job",
    "distribution": "the script runs once on each node; ranks follow the topology",
    "error": _OUTPUT,
    "exclude": "name the allowed nodes: --nodelist, or --node-label of muster submit",
    "exclusive": "nodes are shared; request all GPUs of a node to have it alone",
    "export-file": "use --export=NAME=VALUE",
    "extra-node-info": _BINDING,
    "get-user-env": "a job starts with a small environment: --export=NAME copies one variable",
    "gid": _TENANT,
    "gpu-bind": _BINDING,
    "gpu-freq": "jobs cannot set GPU clocks; operators can, with muster gpu clocks",
    "gpus-per-socket": "request GPUs per node: --gpus-per-node",
    "gres-flags": _BINDING,
    "host-pool": "sbatch does not know it: write #MUSTER --host-pool=SIZE in a line of its own",
    "hint": _BINDING,
    "input": "use muster run, which forwards standard input",
    "licenses": "licences are not counted",
    "mail-type": _MAIL,
    "mail-user": _MAIL,
    "mem-bind": _BINDING,
    "mincpus": "request CPUs per node: --cpus-per-task",
    "network": "Muster does not choose networks",
    "nice": "use muster submit --priority, 0 to 100",
    "no-kill": "a multi-node job that loses a node is restarted as a whole",
    "no-container-remap-root": "a container runs as the job's user unless the node allows others",
    "nodefile": "name the nodes: --nodelist=A,B",
    "ntasks-per-core": _BINDING,
    "ntasks-per-gpu": "give both --ntasks and --gpus",
    "ntasks-per-socket": _BINDING,
    "open-mode": _OUTPUT,
    "output": _OUTPUT,
    "overcommit": "Muster reserves the CPUs of all tasks",
    "oversubscribe": "for parts of a GPU, use muster submit --fraction",
    "parsable": "muster submit prints the id and nothing else",
    "partition": "there are no partitions: use muster submit --gpu-model or --node-label",
    "power": "jobs cannot limit power; operators can, with muster gpu power",
    "pool": "sbatch does not know it: write #MUSTER --pool=SIZE in a line of its own",
    "prefer": "use node labels: muster submit --node-label K=V",
    "priority": "use muster submit --priority, 0 to 100; Slurm's values differ",
    "profile": "muster top shows what runs",
    "propagate": "a job has the limits of its node's agent",
    "qos": _TENANT,
    "quiet": "muster submit prints the id and nothing else",
    "reboot": "Muster does not reboot nodes for a job",
    "segment": "--rack and --spine of muster submit keep nodes together",
    "signal": "a job gets SIGTERM, and SIGKILL after --grace of muster submit (10s)",
    "sockets-per-node": _BINDING,
    "spread-job": "--placement worst_fit of muster submit prefers empty nodes",
    "test-only": "muster submit --dry-run",
    "thread-spec": _BINDING,
    "threads-per-core": _BINDING,
    "time-min": "the time limit is never shortened",
    "tmp": "local disks are not counted",
    "tres-bind": _BINDING,
    "uid": _TENANT,
    "use-min-nodes": "a job gets exactly the requested nodes",
    "verbose": "use muster why JOB",
    "wait": "muster wait JOB",
    "wait-all-nodes": "a job always starts on all its nodes together",
    "wckey": "use a label: muster submit --label",
    "wrap": "put the command into the script",
}  # fmt: skip
