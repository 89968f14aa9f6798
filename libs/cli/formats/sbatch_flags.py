"""The flags of `#SBATCH` lines: which there are, which of them a job can honour, and of the others
what to do instead.

Tables only; `sbatch.py` reads with them. A flag moves from NOT_HONOURED to HONOURED when a job
learns to say it.
"""

from typing import Final

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
)  # fmt: skip
MAY_TAKE: Final = ("exclusive", "get-user-env", "nice", "propagate", "reboot")

HONOURED: Final = (
    "job-name", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu", "gpus",
    "gpus-per-node", "gpus-per-task", "gres",
    "mem", "mem-per-cpu", "mem-per-gpu", "time", "chdir", "nodelist", "requeue", "no-requeue",
    "export", "switches", "dependency", "hold",
    "array",
)  # fmt: skip

_OUTPUT: Final = "Muster keeps what a job writes: muster logs JOB"
_TENANT: Final = "whose job it is, and its limits, follow from your key"
_BINDING: Final = (
    "a job sees its own devices only; --numa, --switch and --interconnect of muster submit say "
    "how near they must be"
)
_MAIL: Final = "Muster sends no mail: muster wait JOB"

NOT_HONOURED: Final = {
    "account": _TENANT,
    "begin": "hold it (--hold), and when it is time: muster release JOB",
    "clusters": "give the cluster by MUSTER_URL or muster login",
    "comment": "labels say such things: muster submit --label",
    "constraint": "nodes have labels: muster submit --node-label K=V",
    "container": "the script runs on the node itself",
    "contiguous": "--rack required of muster submit keeps nodes together",
    "core-spec": _BINDING,
    "cores-per-socket": _BINDING,
    "deadline": ("it is a wish to be met, not an end of the job: muster submit "
"--deadline, in a queue of "
"that policy"),
    "delay-boot": "nodes are not started for a job",
    "distribution": "the script runs once on each node; ranks follow the topology",
    "error": _OUTPUT,
    "exclude": "name the nodes that may be used: --nodelist, or --node-label of muster submit",
    "exclusive": "a node is shared by device; ask for all its GPUs to have it alone",
    "export-file": "give variables by --export=NAME=VALUE",
    "extra-node-info": _BINDING,
    "get-user-env": "a job begins with a small environment: --export=NAME passes one of yours on",
    "gid": _TENANT,
    "gpu-bind": _BINDING,
    "gpu-freq": "clocks of GPUs are not changed",
    "gpus-per-socket": "ask for GPUs by node: --gpus-per-node",
    "gres-flags": _BINDING,
    "hint": _BINDING,
    "input": "give standard input to muster run",
    "licenses": "licences are not counted",
    "mail-type": _MAIL,
    "mail-user": _MAIL,
    "mem-bind": _BINDING,
    "mincpus": "ask for CPUs of each node: --cpus-per-task",
    "network": "networks are not chosen",
    "nice": "muster submit --priority orders a tenant's jobs, 0 to 100",
    "no-kill": "a gang is whole or it is started again",
    "nodefile": "name the nodes: --nodelist=A,B",
    "ntasks-per-core": _BINDING,
    "ntasks-per-gpu": "say both: --ntasks and --gpus",
    "ntasks-per-socket": _BINDING,
    "open-mode": _OUTPUT,
    "output": _OUTPUT,
    "overcommit": "the CPUs of all tasks are asked for",
    "oversubscribe": "parts of a GPU: muster submit --fraction",
    "parsable": "muster submit prints the id and nothing else",
    "partition": ("all nodes are one cluster: muster submit --gpu-model or "
"--node-label chooses among them"),
    "power": "power is not bounded",
    "prefer": "nodes have labels: muster submit --node-label K=V",
    "priority": "it is not Slurm's number: muster submit --priority, 0 to 100",
    "profile": "muster top shows what runs",
    "propagate": "a job has the limits of its node's agent",
    "qos": _TENANT,
    "quiet": "muster submit prints the id and nothing else",
    "reboot": "nodes are not started for a job",
    "reservation": "there are no named reservations",
    "segment": "--rack and --spine of muster submit keep nodes together",
    "signal": "a job is told to end by SIGTERM, and killed after --grace of muster submit (10s)",
    "sockets-per-node": _BINDING,
    "spread-job": "--placement worst_fit of muster submit prefers empty nodes",
    "test-only": "muster submit --dry-run",
    "thread-spec": _BINDING,
    "threads-per-core": _BINDING,
    "time-min": "the time limit is never shortened",
    "tmp": "local disks are not counted",
    "tres-bind": _BINDING,
    "uid": _TENANT,
    "use-min-nodes": "exactly the nodes asked for are given",
    "verbose": "muster why JOB says what the scheduler thinks",
    "wait": "muster wait JOB",
    "wait-all-nodes": "a gang starts on all its nodes",
    "wckey": "labels say such things: muster submit --label",
    "wrap": "write the command into the script",
}  # fmt: skip
