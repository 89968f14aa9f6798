"""The group of all verbs, with their names and one-line helps.

The table avoids imports: a command imports only its own verb. Tests: tests/unit/test_cli_verbs.py
checks that the table and the modules agree.
"""

from importlib import import_module
from typing import Final, NamedTuple

import click


class Verb(NamedTuple):
    """A verb's one-line help, and its heading in `muster --help`."""

    section: str
    help: str


JOBS: Final = "Jobs"
MODELS: Final = "Models"
CLUSTER: Final = "Cluster"
HISTORY: Final = "History and audit"
PEOPLE: Final = "Users and keys"
HERE: Final = "This machine"

VERBS: Final[dict[str, Verb]] = {
    "run": Verb(JOBS, "Run a command on GPUs and wait for it."),
    "submit": Verb(JOBS, "Submit jobs from files, or one command, and print their ids."),
    "ps": Verb(JOBS, "List jobs."),
    "describe": Verb(JOBS, "Show one job in detail, with its history."),
    "jobs": Verb(
        JOBS,
        "List, describe, cancel or kill jobs.",
    ),
    "logs": Verb(JOBS, "Print the output of a job."),
    "cp": Verb(JOBS, "Copy a file or folder from a job to this machine or another node."),
    "exec": Verb(JOBS, "Run a command or a shell inside a running job."),
    "port-forward": Verb(JOBS, "Forward a local port to a port of a running job."),
    "cancel": Verb(JOBS, "Stop jobs: send a signal, then SIGKILL after a grace period."),
    "kill": Verb(JOBS, "Kill jobs at once."),
    "hold": Verb(JOBS, "Hold queued jobs until they are released."),
    "alloc": Verb(JOBS, "Hold GPUs for a while, without a command."),
    "extend": Verb(JOBS, "Extend allocations."),
    "release": Verb(JOBS, "Release held jobs, or end allocations."),
    "requeue": Verb(JOBS, "Stop the running attempt of jobs and queue them again."),
    "update": Verb(JOBS, "Change the priority or the time limit of jobs."),
    "wait": Verb(JOBS, "Wait for jobs to end, and exit with their exit code."),
    "trace": Verb(JOBS, "Trace a running job: kernels, copies and operators of all ranks."),
    "why": Verb(JOBS, "Explain the state of a job, now or at a past moment."),
    "diagnose": Verb(JOBS, "Find the rank that a stuck or slow job waits for, and why."),
    "whatif": Verb(JOBS, "Check whether a job would start now, or with additional nodes."),
    "deploy": Verb(MODELS, "Serve a model: run replicas of a command that answers HTTP."),
    "models": Verb(MODELS, "List models, or show one with its replicas."),
    "scale": Verb(MODELS, "Set the number of replicas of a model."),
    "redeploy": Verb(
        MODELS, "Replace a model's replicas one by one, with a new or the same command."
    ),
    "model": Verb(
        MODELS,
        "Pull models to nodes and keep their data there; name and share models.",
    ),
    "adapter": Verb(MODELS, "Add, remove and list LoRA adapters of models."),
    "undeploy": Verb(MODELS, "Stop serving a model."),
    "nodes": Verb(CLUSTER, "List nodes, or show one with its GPUs."),
    "node": Verb(CLUSTER, "Add a machine to the cluster, remove one, or declare it dead."),
    "prune": Verb(CLUSTER, "Delete the output of ended jobs from the nodes."),
    "gpus": Verb(CLUSTER, "List GPUs and the jobs that hold them."),
    "cluster": Verb(CLUSTER, "Show the services, the servers of the log and the certificates."),
    "status": Verb(CLUSTER, "Show a summary of the cluster, its nodes and its jobs."),
    "gpu": Verb(CLUSTER, "Set power, clocks and modes of GPUs, or reset them."),
    "health": Verb(CLUSTER, "List GPUs that are unhealthy, draining or offline, or show one."),
    "drain": Verb(CLUSTER, "Start no new jobs on nodes or GPUs; running jobs continue."),
    "offline": Verb(CLUSTER, "Set idle nodes or GPUs offline."),
    "online": Verb(CLUSTER, "Return nodes or GPUs to service."),
    "bus": Verb(CLUSTER, "Show or restart the servers of the log."),
    "fabric": Verb(CLUSTER, "Show or measure the links between nodes."),
    "leases": Verb(CLUSTER, "Show or choose the lease profile: how soon a lost node is noticed."),
    "topo": Verb(
        CLUSTER, "Show the links between the GPUs and network cards of a node, and its RDMA ports."
    ),
    "memory": Verb(CLUSTER, "Show the memory pools of jobs, by node and device."),
    "queue": Verb(CLUSTER, "List queues and set their policies."),
    "reserve": Verb(CLUSTER, "Reserve nodes for tenants or users for a period."),
    "maintenance": Verb(CLUSTER, "Keep nodes free of jobs for a period."),
    "unreserve": Verb(CLUSTER, "End reservations and maintenance windows."),
    "reservations": Verb(CLUSTER, "List reservations and maintenance windows."),
    "top": Verb(CLUSTER, "Show a live view of the cluster."),
    "watch": Verb(CLUSTER, "Show a live view of the cluster at a chosen interval."),
    "lock": Verb(CLUSTER, "Hold a lock while a command runs."),
    "locks": Verb(CLUSTER, "List locks, their holders and how many wait."),
    "log": Verb(HISTORY, "Print the log of facts."),
    "state": Verb(HISTORY, "Print the cluster's state at a sequence number of the log."),
    "audit": Verb(HISTORY, "Verify the log against tampering, and export it."),
    "login": Verb(PEOPLE, "Log in to a cluster: read a key, check it, and save it."),
    "dashboard": Verb(PEOPLE, "Print a one-time link that signs a browser in to the dashboard."),
    "whoami": Verb(PEOPLE, "Show the user, tenant and role of the key in use."),
    "usage": Verb(PEOPLE, "Show tokens, GPU time, energy and cost by tenant, user and model."),
    "history": Verb(PEOPLE, "List jobs that have ended, with their use of GPUs and their cost."),
    "price": Verb(PEOPLE, "List and set the prices of GPUs."),
    "tenant": Verb(PEOPLE, "List, create, show and remove tenants and their limits."),
    "key": Verb(PEOPLE, "Create, list, limit, rotate and revoke API keys."),
    "notify": Verb(PEOPLE, "Send messages about jobs and nodes to webhooks, Slack and mail."),
    "secret": Verb(PEOPLE, "Store, list and remove secrets for jobs."),
    "upload": Verb(PEOPLE, "List and remove uploads of directories."),
    "up": Verb(HERE, "Start a cluster on this machine."),
    "down": Verb(HERE, "Stop the cluster that muster up started."),
    "clean": Verb(HERE, "Remove the state of a stopped cluster."),
    "certificates": Verb(HERE, "Show or renew the certificates of the cluster of this machine."),
    "backup": Verb(HERE, "Back up the cluster of this machine, encrypted."),
    "restore": Verb(HERE, "Restore a backup to a new state directory."),
    "doctor": Verb(HERE, "Check that this machine can be a node or hold the log."),
    "simulate": Verb(HERE, "Replay a trace of jobs through the scheduler in virtual time."),
    "join": Verb(HERE, "Make this machine a node of a remote cluster."),
    "config": Verb(HERE, "Check the configuration, or show where each value comes from."),
    "support-bundle": Verb(
        HERE, "Collect diagnostics for a bug report in one file, without secrets."
    ),
    "slurm-shims": Verb(HERE, "Write Slurm's commands (sbatch, squeue ...) for this cluster."),
    "completion": Verb(HERE, "Print a shell completion script."),
    "version": Verb(HERE, "Print the versions of this command, the gateway and the agents."),
}

# Commands of other systems, and the verb that does the same.
OTHER_NAMES: Final = {
    "queues": "queue list", "squeue": "ps", "list": "ps", "ls": "ps", "get": "ps",
    "apply": "submit", "sbatch": "submit",
    "srun": "run", "shell": "exec -it", "ssh": "exec -it", "scancel": "cancel", "stop": "cancel",
    "delete": "cancel", "rm": "cancel",
    "show": "describe", "inspect": "describe", "explain": "why", "sinfo": "nodes", "output": "logs",
    "events": "log", "start": "up", "verify": "audit verify", "attach": "logs -f",
    "tail": "logs -f",
    "serve": "deploy", "deployments": "models", "rollout": "redeploy",
    "resize": "scale",
    "sacct": "history", "sreport": "usage", "prices": "price",
    "keys": "key list", "tenants": "tenant list", "token": "key", "auth": "login",
    "logout": "login", "id": "whoami",
    "settings": "config show", "bundle": "support-bundle", "download": "cp", "scp": "cp",
    "copy": "cp", "forward": "port-forward",
    "replay": "simulate", "sim": "simulate", "salloc": "alloc", "allocate": "alloc",
    "allocations": "ps --kind allocation",
}  # fmt: skip


class VerbGroup(click.Group):
    """A click group that imports a verb when it is used, and suggests one if it is unknown."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = import_module(f"libs.cli.verbs.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in VERBS:
            raise click.UsageError(f"unknown verb '{name}'{suggestion(name)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in dict.fromkeys(verb.section for verb in VERBS.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(name, verb.help) for name, verb in VERBS.items() if verb.section == section]
                )


def suggestion(name: str) -> str:
    """Return ` (did you mean 'ps'?)`, or an empty text without a similar verb."""
    from difflib import get_close_matches  # rarely needed

    meant = OTHER_NAMES.get(name) or next(iter(get_close_matches(name, VERBS, 1, 0.5)), "")
    return f" (did you mean '{meant}'?)" if meant else ""
