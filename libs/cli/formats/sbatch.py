"""Converts a Slurm script with `#SBATCH` lines to a job; the whole script becomes the command.

Each flag that a job cannot honour is a warning with its line: `train.sbatch:4: --mail-type: ...`.
Two differences from Slurm need no flag: the script runs once on each node, and the job does not get
the submitter's environment. `#MUSTER` lines have the flags that Slurm does not know. Pure. Tables:
sbatch_flags.py. Parsers: sbatch_values.py, sbatch_container.py, pools.py. Tests:
tests/unit/test_cli_sbatch.py.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any, Final

from libs.cli.formats import sbatch_values as values
from libs.cli.formats.job_fields import Written
from libs.cli.formats.pools import POOLS, read_pool
from libs.cli.formats.sbatch_container import REPEATABLE, container
from libs.cli.formats.sbatch_flags import ALONE, HONOURED, MAY_TAKE, NOT_HONOURED, OWN, SHORT
from libs.cli.formats.sbatch_script import Flag, Script
from libs.common.devices.mig import PROFILES
from libs.common.errors import Refused
from libs.common.model import PREFERRED, REQUIRED
from libs.common.state.ordering import SINGLETON

DIRECTIVE: Final = "#SBATCH"
OWN_DIRECTIVE: Final = "#MUSTER"
# Interpreters that run a script from an argument, by the option for it.
INTERPRETERS: Final = (
    ("-c", re.compile(r"(ba|da|k|z|c|tc|fi)?sh|python[0-9.]*")),
    ("-e", re.compile(r"perl|ruby|node|Rscript")),
)
# Slurm's own commands, which are not on the nodes.
SLURMS_OWN: Final = re.compile(r"(?:^|[\s|&;(`])(srun|scontrol|sbcast|sattach)\s")

_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_JOB_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def is_script(text: str) -> bool:
    return text.startswith("#!")


def read_script(text: str, name: str, environ: Mapping[str, str]) -> Written:
    """Return the job of a script; `environ` gives the values for `--export=NAME`.

    Raises Refused with file, line, flag and the expected form.
    """
    return job_of(gathered(text, name), command_of(text, name), name, environ)


def gathered(text: str, name: str, also: tuple[str, ...] = ()) -> Script:
    """Return the flags of a script's directives; `also` are flags that the caller honours.

    Raises Refused.
    """
    script = Script(name, {}, [], also)
    _gather(script, text.split("\n"))
    return script


def command_of(text: str, name: str) -> list[str]:
    """Return the command that runs the script's text. Raises Refused."""
    return _command(name, text, text.split("\n", 1)[0], PurePath(name).name)


def job_of(
    script: Script, command: Sequence[str], name: str, environ: Mapping[str, str]
) -> Written:
    """Return the job of these flags and this command. Raises Refused."""
    shown = PurePath(name).name
    job: dict[str, Any] = {"command": list(command)}
    job_name = script.value("job-name", str, shown if _JOB_NAME.fullmatch(shown) else "")
    nowhere: list[str] = []
    for field, found in (
        ("name", job_name),
        ("workdir", script.value("chdir", str, "")),
        ("time_limit_s", script.value("time", values.seconds, 0)),
        ("node_list", script.value("nodelist", values.nodes_named, nowhere)),
        ("reservation", script.value("reservation", values.name, "")),
        ("env", _exported(script, environ)),
    ):
        if found:
            job[field] = found
    job |= _restart(script) | _order(script) | _nearness(script) | _resources(script)
    for flag in sorted(POOLS.keys() & script.flags.keys()):
        job[POOLS[flag]] = script.value(flag, read_pool, 0)
    job |= container(script)
    return Written(name, job, script.warnings)


def _command(name: str, text: str, first: str, shown: str) -> list[str]:
    """Return the command that runs the script's text, with its name as `$0`.

    Raises Refused if the first line names no known interpreter.
    """
    words = first.removeprefix("#!").split()
    program = PurePath(
        words[1] if len(words) > 1 and PurePath(words[0]).name == "env" else (words or [""])[0]
    ).name
    flag = next((flag for flag, known in INTERPRETERS if known.fullmatch(program)), "")
    if not flag:
        raise Refused(
            f"{name}:1: {first!r} does not name a supported interpreter: use for example "
            "#!/bin/bash"
        )
    return [*words, flag, text, *([shown] if program.endswith("sh") else [])]


def _gather(script: Script, lines: Sequence[str]) -> None:
    """Collect the flags of the directives, which end at the first command."""
    begun = False
    for number, line in enumerate(lines, start=1):
        kind = _kind(line)
        if kind and begun:
            script.warn(number, f"{kind} after the first command: ignored, as in Slurm")
        elif kind:
            _directive(script, number, line.removeprefix(kind), own=kind == OWN_DIRECTIVE)
        elif line.strip() and not line.lstrip().startswith("#"):
            begun = True
            if own := SLURMS_OWN.search(line + " "):
                script.warn(
                    number,
                    (
                        f"{own[1]}: only Slurm has this command; in Muster the script "
                        "itself runs on each "
                        "node, with RANK, MASTER_ADDR and SLURM_*"
                    ),
                )


def _kind(line: str) -> str:
    """Return the word with which a directive begins; empty for any other line."""
    if line.startswith(DIRECTIVE):
        return DIRECTIVE
    return OWN_DIRECTIVE if line.split(maxsplit=1)[:1] == [OWN_DIRECTIVE] else ""


def _directive(script: Script, line: int, text: str, own: bool) -> None:
    try:
        words = shlex.split(_COMMENT.sub("", text))
    except ValueError as error:
        raise Refused(f"{script.name}:{line}: {text.strip()!r} cannot be read: {error}") from None
    for flag, value in _flags(script, line, words):
        if flag in (OWN if own else (*HONOURED, *script.also)):
            before = script.flags.get(flag) if flag in REPEATABLE else None
            script.flags[flag] = Flag(line, f"{before.value},{value}" if before else value)
        elif own:
            only = " and ".join((", ".join(f"--{name}" for name in OWN[:-1]), f"--{OWN[-1]}"))
            raise Refused(
                f"{script.name}:{line}: --{flag} in a {OWN_DIRECTIVE} line: only {only} are "
                f"supported there; write the flags of sbatch after {DIRECTIVE}"
            )
        elif flag in NOT_HONOURED:
            script.warn(line, f"--{flag}: not honoured: {NOT_HONOURED[flag]}")
        else:
            near = next(iter(get_close_matches(flag, (*HONOURED, *NOT_HONOURED), 1, 0.7)), "")
            script.warn(
                line, f"--{flag}: unknown flag" + (f" (did you mean --{near}?)" if near else "")
            )


def _flags(script: Script, line: int, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (long name, value) for each flag of a directive."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word in ("-", "--"):
            script.warn(line, f"{word!r} is not a flag and is ignored")
            continue
        flag, equals, value = (
            word[2:].partition("=")
            if word.startswith("--")
            else (SHORT.get(word[1], word[1]), word[2:], word[2:])
        )
        if not (equals or flag in ALONE or flag in MAY_TAKE):
            known = flag in HONOURED or flag in NOT_HONOURED
            if rest and (known or not rest[0].startswith("-")):
                value = rest.pop(0)
            elif known:
                raise Refused(f"{script.name}:{line}: --{flag} needs a value")
        yield flag, value


def _exported(script: Script, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `--export`: NAME=VALUE, or NAME from `environ`."""
    env: dict[str, str] = {}
    for word in script.words("export"):
        name, equals, value = word.partition("=")
        if word == "ALL":
            script.note(
                "export",
                (
                    "ALL is not honoured: a job starts with a small environment; --export=NAME "
                    "copies one variable"
                ),
            )
        elif equals or name in environ:
            env[name] = value if equals else environ[name]
        elif word not in ("NONE", "NIL"):
            script.note("export", f"{name} is not set in your environment")
    return env


def _restart(script: Script) -> dict[str, Any]:
    lines = [
        (script.flags[flag].line, flag == "requeue")
        for flag in ("requeue", "no-requeue")
        if flag in script.flags
    ]
    return {"requeue": max(lines)[1]} if lines else {}


def _order(script: Script) -> dict[str, Any]:
    """Return the fields about arrays, dependencies and holds."""
    nothing: list[str] = []
    waits = script.value("dependency", values.dependencies, nothing)
    after = [wait for wait in waits if wait != SINGLETON]
    array = script.value("array", values.array, "")
    found: dict[str, Any] = {
        "array": array,
        "after": after,
        "singleton": SINGLETON in waits,
        "hold": "hold" in script.flags,
    }
    return {field: value for field, value in found.items() if value}


def _nearness(script: Script) -> dict[str, Any]:
    """Return the rack for `--switches=1` (one leaf switch).

    With a maximum wait (`1@60`) the rack is only preferred.
    """
    if "switches" not in script.flags:
        return {}
    count, _, patience = script.flags["switches"].value.partition("@")
    if count != "1":
        script.note("switches", "only 1 is honoured: use --rack or --spine of muster submit")
        return {}
    if patience:
        script.note(
            "switches", f"one rack is preferred; the maximum wait {patience} is not honoured"
        )
    return {"rack": PREFERRED if patience else REQUIRED}


def _resources(script: Script) -> dict[str, Any]:
    """Return nodes, and CPUs, GPUs and memory per node, from Slurm's counts.

    Raises Refused for two kinds of GPUs.
    """
    devices = _devices(script)
    tasks, each = script.number("ntasks"), script.number("ntasks-per-node")
    nodes, most = _nodes(script, devices, tasks, each)
    each = each or -(-tasks // nodes) or 1
    if each > 1 and not script.on_each_node:
        script.note(
            "ntasks-per-node" if "ntasks-per-node" in script.flags else "ntasks",
            (
                f"the script runs once on each node, with the CPUs of {each} tasks: start the "
                "tasks in it (torchrun, mpirun)"
            ),
        )
    gpus = _gpus(script, devices, nodes, each)
    cpus = script.number("cpus-per-gpu") * gpus or (script.number("cpus-per-task") or 1) * each
    memory = _memory(script, cpus, gpus)
    has_cpus = any(
        flag in script.flags
        for flag in ("ntasks", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu")
    )
    job: dict[str, Any] = {"nodes": nodes, "gpus": gpus} | (
        {"nodes_max": most} if most > nodes else {}
    )
    if has_cpus or gpus == 0:
        job["cpus"] = cpus
    if memory:
        job["memory_bytes"] = memory
    kinds = sorted({device.kind for device in devices.values() if device.kind})
    if len(kinds) > 1:
        raise Refused(
            f"{script.name}: a job can use only one kind of GPU, not {' and '.join(kinds)}"
        )
    return job | (
        {"mig_profile": kinds[0]}
        if kinds and kinds[0] in PROFILES
        else {"model": kinds}
        if kinds
        else {}
    )


def _devices(script: Script) -> dict[str, values.Devices]:
    """Return the GPUs that each flag requests."""
    flags = ("gpus", "gpus-per-node", "gpus-per-task")
    found = {
        flag: script.value(flag, values.devices, values.Devices())
        for flag in flags
        if flag in script.flags
    }
    for item in script.words("gres"):
        kind, _, rest = item.partition(":")
        if kind in ("gpu", "gres/gpu"):
            found["gres"] = _generic(script, rest)
        elif kind != "none":
            script.note("gres", f"{item} is not honoured: only gpu is supported")
    return found


def _generic(script: Script, text: str) -> values.Devices:
    """Return the GPUs for the part of `--gres=gpu:h100:4` behind `gpu:`; empty means one."""
    try:
        return values.devices(text or "1")
    except ValueError as error:
        raise script.fault("gres", str(error)) from None


def _nodes(
    script: Script, devices: Mapping[str, values.Devices], tasks: int, each: int
) -> tuple[int, int]:
    """Return the minimum and maximum of nodes: as given, or as many as the totals need."""
    most = 0
    if "nodes" in script.flags:
        nodes, most = script.value("nodes", values.span, (1, 1))
    elif tasks and each:
        nodes = -(-tasks // each)
    elif "gpus" in devices and "gpus-per-node" in devices:
        nodes = -(-devices["gpus"].gpus // max(1, devices["gpus-per-node"].gpus))
    else:
        nodes = 1
    if most > nodes and (tasks or "gpus" in devices):
        script.note(
            "nodes", f"{nodes} nodes: totals over all nodes cannot grow with a range of nodes"
        )
        most = nodes
    most = max(nodes, most)
    if most > 1 and not script.on_each_node:
        flag = next(flag for flag in ("nodes", "ntasks", "gpus") if flag in script.flags)
        counts = f"{nodes} to {most}" if most > nodes else f"{most}"
        script.note(
            flag,
            f"the script runs on each of the {counts} nodes; in Slurm it runs on the "
            "first one only",
        )
    return nodes, most


def _gpus(script: Script, devices: Mapping[str, values.Devices], nodes: int, tasks: int) -> int:
    """Return the GPUs per node. Raises Refused if the total is not a multiple of the nodes."""
    for flag in ("gpus-per-node", "gres"):
        if flag in devices:
            return devices[flag].gpus
    if "gpus" in devices:
        if devices["gpus"].gpus % nodes:
            raise script.fault(
                "gpus", f"the number is not a multiple of {nodes} nodes: use --gpus-per-node"
            )
        return devices["gpus"].gpus // nodes
    return devices["gpus-per-task"].gpus * tasks if "gpus-per-task" in devices else 0


def _memory(script: Script, cpus: int, gpus: int) -> int:
    """Return the memory per node in bytes."""
    if "mem" in script.flags and script.value("mem", values.size_bytes, 0) == 0:
        script.note("mem", "0 (all memory of a node) is not honoured: give a size")
    return (
        script.value("mem", values.size_bytes, 0)
        or script.value("mem-per-gpu", values.size_bytes, 0) * gpus
        or script.value("mem-per-cpu", values.size_bytes, 0) * cpus
    )
