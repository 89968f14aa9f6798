"""The group of all verbs.

It knows their names and one-line helps, so that only the verb in use is imported.

Tests: tests/unit/test_cli_verbs.py holds that the table and the modules agree.
"""

from difflib import get_close_matches
from importlib import import_module
from typing import Final, NamedTuple

import click


class Verb(NamedTuple):
    """`section` is the heading under which `muster --help` shows it."""

    section: str
    help: str


JOBS: Final = "Jobs"
MODELS: Final = "Models"
CLUSTER: Final = "Cluster"
HISTORY: Final = "History"
PEOPLE: Final = "People and keys"
HERE: Final = "This machine"

VERBS: Final[dict[str, Verb]] = {
    "run": Verb(JOBS, "Run a command on GPUs and stay with it until it ends."),
    "submit": Verb(JOBS, "Submit jobs from files, or one command, and print their ids."),
    "ps": Verb(JOBS, "List jobs."),
    "describe": Verb(JOBS, "Show everything about one job."),
    "jobs": Verb(
        JOBS, "List, describe, cancel and kill jobs: ps, describe, cancel and kill by other names."
    ),
    "logs": Verb(JOBS, "Print what a job wrote."),
    "cp": Verb(JOBS, "Copy a file or a folder of a job to here."),
    "exec": Verb(JOBS, "Run a command, or a shell, beside a running job."),
    "port-forward": Verb(JOBS, "Reach a port of a running job from this machine."),
    "cancel": Verb(JOBS, "Ask jobs to stop, then kill them after a grace period."),
    "kill": Verb(JOBS, "Kill jobs at once."),
    "hold": Verb(JOBS, "Keep jobs from being placed until they are released."),
    "alloc": Verb(JOBS, "Hold GPUs for a while, without a command."),
    "extend": Verb(JOBS, "Let allocations last longer."),
    "release": Verb(JOBS, "Let held jobs be placed, and give allocations back."),
    "requeue": Verb(JOBS, "End the running attempt of jobs and let them wait for the next one."),
    "update": Verb(JOBS, "Change the priority or the time limit of jobs."),
    "wait": Verb(JOBS, "Wait for jobs to end and exit with their exit code."),
    "why": Verb(JOBS, "Say why a job is where it is, now or at any past moment."),
    "whatif": Verb(
        JOBS, "Say whether a job would start now, or with nodes that are not bought yet."
    ),
    "deploy": Verb(MODELS, "Serve a model: keep replicas of a command that answers HTTP."),
    "models": Verb(MODELS, "List models, or show one with its replicas."),
    "scale": Verb(MODELS, "Change how many replicas a model has."),
    "redeploy": Verb(
        MODELS, "Exchange a model's replicas one by one, with a new command or the same."
    ),
    "undeploy": Verb(MODELS, "Stop serving a model."),
    "nodes": Verb(CLUSTER, "List nodes, or show one with its GPUs."),
    "node": Verb(CLUSTER, "Add a machine to the cluster, remove one, or say that it is dead."),
    "prune": Verb(CLUSTER, "Remove the output of ended jobs from the nodes."),
    "gpus": Verb(CLUSTER, "List GPUs and who holds them."),
    "status": Verb(CLUSTER, "Show how the cluster is, its nodes and its jobs."),
    "gpu": Verb(CLUSTER, "Set power, clocks and modes of GPUs, or reset them."),
    "health": Verb(CLUSTER, "Show which GPUs are unwell or out of service, or how one is."),
    "drain": Verb(CLUSTER, "Let no new work onto nodes or GPUs; what runs there goes on."),
    "offline": Verb(CLUSTER, "Take nodes or GPUs out of service; refused while jobs have them."),
    "online": Verb(CLUSTER, "Let work onto nodes or GPUs again."),
    "topo": Verb(CLUSTER, "Show how the GPUs and network cards of a node lie to each other."),
    "queue": Verb(CLUSTER, "List queues and set how each is ordered."),
    "reserve": Verb(CLUSTER, "Keep nodes for some tenants or users during some time."),
    "maintenance": Verb(CLUSTER, "Keep a node free of jobs during some time."),
    "unreserve": Verb(CLUSTER, "End reservations and maintenances."),
    "reservations": Verb(CLUSTER, "List reservations and maintenances."),
    "top": Verb(CLUSTER, "Watch the cluster live."),
    "watch": Verb(CLUSTER, "Watch the cluster live, as often as you say."),
    "log": Verb(HISTORY, "Print the log of facts."),
    "state": Verb(HISTORY, "Print the state of the cluster at a past moment of the log."),
    "audit": Verb(HISTORY, "Prove that nothing in the log was changed; hand it on."),
    "login": Verb(PEOPLE, "Use a cluster from this machine: ask for a key, check it, keep it."),
    "whoami": Verb(PEOPLE, "Show whose key is used here and what it may do."),
    "tenant": Verb(PEOPLE, "List, set, show and remove tenants and their limits."),
    "key": Verb(PEOPLE, "Create, list, rotate and revoke API keys."),
    "secret": Verb(PEOPLE, "Keep, list and remove secrets that jobs are given."),
    "up": Verb(HERE, "Start a cluster on this machine."),
    "down": Verb(HERE, "Stop the cluster that `muster up` started."),
    "clean": Verb(HERE, "Remove the state of a stopped cluster."),
    "doctor": Verb(HERE, "Check whether this machine is fit to be a node or to hold the log."),
    "simulate": Verb(HERE, "Replay a trace of jobs in virtual time through the scheduler."),
    "join": Verb(HERE, "Make this machine a node of a cluster that runs elsewhere."),
    "config": Verb(HERE, "Check the configuration, or show where each value comes from."),
    "support-bundle": Verb(
        HERE, "Collect what a report of a fault needs into one file, without secrets."
    ),
    "completion": Verb(HERE, "Print the shell's completion of this command."),
    "version": Verb(HERE, "Print the versions of this command, the gateway and the agents."),
}

# What people type who come from elsewhere.
KNOWN_ELSEWHERE: Final = {
    "queues": "queue list", "squeue": "ps", "list": "ps", "ls": "ps", "get": "ps",
    "apply": "submit", "sbatch": "submit",
    "srun": "run", "shell": "exec -it", "ssh": "exec -it", "scancel": "cancel", "stop": "cancel",
    "delete": "cancel", "rm": "cancel",
    "show": "describe", "inspect": "describe", "explain": "why", "sinfo": "nodes", "output": "logs",
    "events": "log", "history": "log", "start": "up", "verify": "audit verify", "attach": "logs -f",
    "tail": "logs -f",
    "serve": "deploy", "model": "models", "deployments": "models", "rollout": "redeploy",
    "resize": "scale",
    "keys": "key list", "tenants": "tenant list", "token": "key", "auth": "login",
    "logout": "login", "id": "whoami",
    "settings": "config show", "bundle": "support-bundle", "download": "cp", "scp": "cp",
    "copy": "cp", "forward": "port-forward",
    "replay": "simulate", "sim": "simulate", "salloc": "alloc", "allocate": "alloc",
    "allocations": "ps --kind allocation",
}  # fmt: skip


class VerbGroup(click.Group):
    """Imports a verb's module when the verb is used, and suggests one when it is not known."""

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
            raise click.UsageError(f"there is no verb '{name}'{suggestion(name)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in dict.fromkeys(verb.section for verb in VERBS.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(name, verb.help) for name, verb in VERBS.items() if verb.section == section]
                )


def suggestion(name: str) -> str:
    """` (did you mean 'ps'?)`, or nothing where nothing is near."""
    meant = KNOWN_ELSEWHERE.get(name) or next(iter(get_close_matches(name, VERBS, 1, 0.5)), "")
    return f" (did you mean '{meant}'?)" if meant else ""
