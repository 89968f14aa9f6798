"""srun: run a command on each node of a new job, of an allocation, or inside a job's script."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from libs.cli.formats import sbatch_values as values
from libs.cli.formats.sbatch_flags import HONOURED, SHORT
from libs.cli.formats.sbatch_script import Script
from libs.cli.gateway import ask, job_path
from libs.cli.slurm.holding import held, request_of
from libs.cli.slurm.ids import id_of
from libs.cli.slurm.job_requests import ALSO, IGNORED, options, refused, requested, with_flags
from libs.cli.slurm.options import MAY, NONE, Given, Option, Table, parse
from libs.cli.slurm.requests import say
from libs.client.profile import Profile, read_profile
from libs.common.errors import Refused

PROGRAM: Final = "srun"
# Flags that ask for what Muster does in any case, or that change nothing here.
ACCEPTED: Final = (
    Option("unbuffered", "u", NONE), Option("overlap", "", NONE), Option("exact", "", NONE),
    Option("kill-on-bad-exit", "K", MAY), Option("cpu-bind", ""), Option("mpi", ""),
    Option("quit-on-interrupt", "", NONE), Option("quiet", "Q", NONE), Option("exclusive", "", MAY),
    Option("disable-status", "X", NONE),
)  # fmt: skip
NAMES: Final = (
    *(name for name in HONOURED if name not in ("array", "requeue", "no-requeue", "hold")),
    *ALSO,
    *IGNORED,
)
OTHERS: Final = {
    "array": "use sbatch --array",
    "requeue": "use sbatch --requeue",
    "no-requeue": "use sbatch --no-requeue",
    "hold": "use sbatch --hold",
    "output": "redirect the output: srun COMMAND > FILE",
    "error": "redirect the output: srun COMMAND 2> FILE",
    "input": "redirect the input: srun COMMAND < FILE",
    "label": "use muster logs JOB --rank N for the output of one node",
    "multi-prog": "use sbatch with a script that looks at SLURM_PROCID",
    "immediate": "use muster whatif, which says whether the job would start now",
    "bcast": "use muster run --upload DIR",
    "relative": "use --nodelist",
    "het-group": "a job of Muster is of one kind",
}
TABLE: Final = Table(
    PROGRAM,
    (*options(NAMES), *ACCEPTED, Option("pty", "", NONE), Option("jobid")),
    {
        name: text
        for name, text in (refused(NAMES) | OTHERS).items()
        if name not in ("quiet", "exclusive")
    },
    {**SHORT, "l": "label", "I": "immediate", "r": "relative"},
    stops=True,
)
# The output of at most this many nodes is shown.
NODES_SHOWN: Final = 64
SKIPPED: Final = 0
EXEC: Final = (sys.executable, "-P", "-c", "from libs.cli.main import main; main()", "exec")


def main(words: Sequence[str]) -> int:
    given = parse(TABLE, words)
    command = given.rest
    if not command and not given.has("pty"):
        raise Refused("no command given to execute")
    if os.environ.get("MUSTER_JOB_ID") and not given.has("jobid"):
        return _inside(given, command, os.environ)
    job = given.last("jobid") or os.environ.get("SLURM_JOB_ID", "")
    if job:
        return _in_allocation(read_profile(), id_of(job), given, command)
    check_tasks(given)
    given = with_nodes_of_tasks(given)
    profile = read_profile()
    if given.has("pty"):
        return _terminal(profile, given, command)
    return _run(profile, given, command)


def check_tasks(given: Given, nodes: int = 0) -> None:
    """Raise Refused unless each node gets one task. `nodes` are those of the job, 0: as given."""
    each = given.last("ntasks-per-node", "1")
    known = nodes or _least(given) or 1
    count = _tasks(given) or 1
    if count > known or each != "1":
        asked = f"--ntasks={count}" if count > known else f"--ntasks-per-node={each}"
        raise Refused(
            f"{asked} on {known} node{'s' if known > 1 else ''}: Muster starts one task on each "
            f"node: give -N {count}, or start the tasks in one (torchrun --nproc-per-node, mpirun)"
        )


def nodes_wanted(given: Given) -> int:
    """Return how many nodes run the command, 0: all. Each runs one task. Raises Refused."""
    return min((count for count in (_least(given), _tasks(given)) if count), default=0)


def with_nodes_of_tasks(given: Given) -> Given:
    """Return the flags with no more nodes than tasks, as Slurm corrects them. Raises Refused."""
    wanted = nodes_wanted(given)
    if not given.has("nodes") or wanted == _least(given):
        return given
    return given._replace(flags=[*given.flags, ("nodes", str(wanted))])


def _least(given: Given) -> int:
    """Return the least number of nodes of -N, 0 without it. Raises Refused."""
    return _read("nodes", given, lambda text: values.span(text)[0])


def _tasks(given: Given) -> int:
    """Return the number of -n, 0 without it. Raises Refused."""
    found = _read("ntasks", given, values.number)
    if given.has("ntasks") and not found:
        raise Refused("--ntasks=0: expected at least one task")
    return found


def _read(flag: str, given: Given, read: Callable[[str], int]) -> int:
    if not given.has(flag):
        return 0
    try:
        return read(given.last(flag))
    except ValueError as error:
        raise Refused(f"--{flag}={given.last(flag)}: {error}") from error


def _inside(given: Given, command: list[str], environ: Mapping[str, str]) -> int:
    """Run a step of a job's script: the script runs on each node, so each runs the command once.

    Nodes that the step does not use skip it.
    """
    nodes = int(environ.get("SLURM_NNODES") or 1)
    check_tasks(given, nodes)
    wanted = nodes_wanted(given)
    rank = int(environ.get("SLURM_PROCID") or 0)
    if wanted and rank >= wanted:
        return SKIPPED
    return _replaced(command or [environ.get("SHELL") or "/bin/sh"])


def _replaced(command: list[str]) -> NoReturn:
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise Refused(f"cannot run {command[0]}: {error.strerror}") from error


def _run(profile: Profile, given: Given, command: list[str]) -> int:
    """Submit a job of its own and follow it to its end."""
    from libs.cli.following.running import run_to_end
    from libs.cli.following.stdin_forwarding import worth_forwarding

    script = with_flags(Script(PROGRAM, {}, [], ALSO, on_each_node=True), given)
    written = requested(script, command, os.path.basename(command[0]), os.environ)
    for warning in written.warnings:
        say(PROGRAM, f"warning: {warning}")
    job: dict[str, Any] = {"user": profile.user, **written.job, "stdin": worth_forwarding()}
    if not job.get("image") or job.get("workdir"):
        job["workdir"] = os.path.abspath(job.get("workdir") or "")
    nodes = int(job["nodes"])
    if nodes > NODES_SHOWN:
        say(PROGRAM, f"warning: only the output of the first {NODES_SHOWN} nodes is shown")
    return run_to_end(profile, job, others=range(1, min(nodes, NODES_SHOWN)))


def _terminal(profile: Profile, given: Given, command: list[str]) -> int:
    """Hold an allocation, and run the command in it with a terminal.

    The terminal is a process of its own: it ends at once by a signal, and this one gives back.
    """
    if not sys.stdin.isatty():
        raise Refused("--pty: standard input is not a terminal: remove --pty")
    words = tuple(command) or (os.environ.get("SHELL") or "/bin/sh",)
    body = request_of(given, PROGRAM, ALSO, profile)
    with held(profile, body, PROGRAM) as shown:
        terminal = subprocess.Popen([*EXEC, "--tty", str(shown["id"]), "--", *words])
        try:
            code = terminal.wait()
        except (SystemExit, KeyboardInterrupt):
            terminal.terminate()
            terminal.wait()
            raise
    return code if code >= 0 else 128 - code


def _in_allocation(profile: Profile, job: str, given: Given, command: list[str]) -> int:
    """Run the command in an allocation or a running job, on each of its nodes."""
    from libs.cli.following.execution import execute
    from libs.common.messages.channel_messages import Exec

    nodes = [str(name) for name in ask(profile, "GET", job_path(job))["node_ids"]]
    check_tasks(given, max(1, len(nodes)))
    nodes = nodes[: nodes_wanted(given) or len(nodes)]
    if len(nodes) > NODES_SHOWN:
        raise Refused(f"the job has {len(nodes)} nodes: give -N {NODES_SHOWN} or fewer")
    terminal = given.has("pty")
    words = tuple(command) or (os.environ.get("SHELL") or "/bin/sh",)
    if terminal or len(nodes) < 2:
        term = os.environ.get("TERM", "") if terminal else ""
        request = Exec(words, stdin=terminal or not sys.stdin.isatty(), tty=terminal, term=term)
        return execute(profile, job, request, nodes[0] if nodes else "")
    return _on_each(job, nodes, words)


def _on_each(job: str, nodes: Sequence[str], words: Sequence[str]) -> int:
    """Run `muster exec` for each node at once, and return the largest exit code."""
    running = [
        subprocess.Popen([*EXEC, "--node", node, job, "--", *words], stdin=subprocess.DEVNULL)
        for node in nodes
    ]
    try:
        return max(process.wait() for process in running)
    except KeyboardInterrupt:
        for process in running:
            process.terminate()
        raise
