"""Reads a script with `#SBATCH` lines, as people bring it from Slurm, into a job; the whole script
is the job's command.

Whatever is written there and not honoured is a warning with its line, never silently dropped:
`train.sbatch:4: --mail-type: ...`. What differs from Slurm without a flag: the script runs once on
each node, and the submitter's environment stays behind. Pure. Its tables: sbatch_flags.py, its
values: sbatch_values.py. Tests: tests/unit/test_cli_sbatch.py.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any, Final, NamedTuple, TypeVar

from libs.cli.formats import sbatch_values as values
from libs.cli.formats.job_fields import Written
from libs.cli.formats.sbatch_flags import ALONE, HONOURED, MAY_TAKE, NOT_HONOURED, SHORT
from libs.common.devices.mig import PROFILES
from libs.common.errors import Refused
from libs.common.model import PREFERRED, REQUIRED
from libs.common.state.ordering import SINGLETON

T = TypeVar("T")

DIRECTIVE: Final = "#SBATCH"
# Programs that run a script given as a word, by their flag for it.
INTERPRETERS: Final = (
    ("-c", re.compile(r"(ba|da|k|z|c|tc|fi)?sh|python[0-9.]*")),
    ("-e", re.compile(r"perl|ruby|node|Rscript")),
)
# Slurm's own commands, which are not on the nodes.
SLURMS_OWN: Final = re.compile(r"(?:^|[\s|&;(`])(srun|scontrol|sbcast|sattach)\s")

_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_JOB_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Said(NamedTuple):
    """A flag's value and the line where it stands."""

    line: int
    value: str


class Script(NamedTuple):
    """What was said, by flag (the last one of a name holds, as in Slurm), and the
    warnings so far.
    """

    name: str
    said: dict[str, Said]
    noted: list[tuple[int, str]]

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(f"{self.name}:{line}: {text}" for line, text in sorted(self.noted))

    def warn(self, line: int, text: str) -> None:
        self.noted.append((line, text))

    def note(self, flag: str, text: str) -> None:
        self.warn(self.said[flag].line, f"--{flag}: {text}")

    def value(self, flag: str, read: Callable[[str], T], default: T) -> T:
        """Raises Refused where the value is not what the flag takes."""
        if flag not in self.said:
            return default
        try:
            return read(self.said[flag].value)
        except ValueError as error:
            raise self.fault(flag, str(error)) from None

    def number(self, flag: str) -> int:
        """0 where it is not said."""
        return self.value(flag, values.number, 0)

    def words(self, flag: str) -> list[str]:
        """What stands between commas."""
        return values.listed(self.said[flag].value) if flag in self.said else []

    def fault(self, flag: str, text: str) -> Refused:
        line, value = self.said[flag]
        return Refused(f"{self.name}:{line}: --{flag}={value}: {text}")


def is_script(text: str) -> bool:
    return text.startswith("#!")


def read_script(text: str, name: str, environ: Mapping[str, str]) -> Written:
    """`environ` is the submitter's, for `--export=NAME`.

    Raises Refused naming file, line, flag and what is expected.
    """
    lines = text.split("\n")
    script = Script(name, {}, [])
    _gather(script, lines)
    shown = PurePath(name).name
    job: dict[str, Any] = {"command": _command(name, text, lines[0], shown)}
    job_name = script.value("job-name", str, shown if _JOB_NAME.fullmatch(shown) else "")
    nowhere: list[str] = []
    for field, found in (
        ("name", job_name),
        ("workdir", script.value("chdir", str, "")),
        ("time_limit_s", script.value("time", values.seconds, 0)),
        ("node_list", script.value("nodelist", values.nodes_named, nowhere)),
        ("env", _exported(script, environ)),
    ):
        if found:
            job[field] = found
    job |= _restart(script) | _order(script) | _nearness(script) | _resources(script)
    return Written(name, job, script.warnings)


def _command(name: str, text: str, first: str, shown: str) -> list[str]:
    """The script as its interpreter takes it, with its own name as `$0`."""
    words = first.removeprefix("#!").split()
    program = PurePath(
        words[1] if len(words) > 1 and PurePath(words[0]).name == "env" else (words or [""])[0]
    ).name
    flag = next((flag for flag, known in INTERPRETERS if known.fullmatch(program)), "")
    if not flag:
        raise Refused(
            f"{name}:1: {first!r} names no interpreter that runs a script given as a word: "
            "use for instance #!/bin/bash"
        )
    return [*words, flag, text, *([shown] if program.endswith("sh") else [])]


def _gather(script: Script, lines: Sequence[str]) -> None:
    """Every flag of the directives, which end at the first command."""
    begun = False
    for number, line in enumerate(lines, start=1):
        if line.startswith(DIRECTIVE):
            if begun:
                script.warn(
                    number,
                    "#SBATCH after the first command: Slurm does not read it, nor is it read here",
                )
            else:
                _directive(script, number, line.removeprefix(DIRECTIVE))
        elif line.strip() and not line.lstrip().startswith("#"):
            begun = True
            if own := SLURMS_OWN.search(line + " "):
                script.warn(
                    number,
                    (
                        f"{own[1]}: Slurm's own command; here the script itself runs on each "
                        "node, with RANK, MASTER_ADDR and SLURM_*"
                    ),
                )


def _directive(script: Script, line: int, text: str) -> None:
    try:
        words = shlex.split(_COMMENT.sub("", text))
    except ValueError as error:
        raise Refused(f"{script.name}:{line}: {text.strip()!r} cannot be read: {error}") from None
    for flag, value in _flags(script, line, words):
        if flag in HONOURED:
            script.said[flag] = Said(line, value)
        elif flag in NOT_HONOURED:
            script.warn(line, f"--{flag}: not honoured: {NOT_HONOURED[flag]}")
        else:
            near = next(iter(get_close_matches(flag, (*HONOURED, *NOT_HONOURED), 1, 0.7)), "")
            script.warn(
                line, f"--{flag}: not known" + (f" (did you mean --{near}?)" if near else "")
            )


def _flags(script: Script, line: int, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(long name, value) of each."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word in ("-", "--"):
            script.warn(line, f"{word!r} is no flag")
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
    """`--export`: NAME=VALUE as it says, NAME as it is here."""
    env: dict[str, str] = {}
    for word in script.words("export"):
        name, equals, value = word.partition("=")
        if word == "ALL":
            script.note(
                "export",
                (
                    "ALL is not honoured: a job begins with a small environment; --export=NAME "
                    "passes one of yours on"
                ),
            )
        elif equals or name in environ:
            env[name] = value if equals else environ[name]
        elif word not in ("NONE", "NIL"):
            script.note("export", f"{name} is not set here")
    return env


def _restart(script: Script) -> dict[str, Any]:
    said = [
        (script.said[flag].line, flag == "requeue")
        for flag in ("requeue", "no-requeue")
        if flag in script.said
    ]
    return {"requeue": max(said)[1]} if said else {}


def _order(script: Script) -> dict[str, Any]:
    """How often, and when it may begin."""
    nothing: list[str] = []
    waits = script.value("dependency", values.dependencies, nothing)
    after = [wait for wait in waits if wait != SINGLETON]
    array = script.value("array", values.array, "")
    found: dict[str, Any] = {
        "array": array,
        "after": after,
        "singleton": SINGLETON in waits,
        "hold": "hold" in script.said,
    }
    return {field: value for field, value in found.items() if value}


def _nearness(script: Script) -> dict[str, Any]:
    """`--switches=1` is one leaf switch, which is a rack; with a time to wait for it, it is a
    preference.
    """
    if "switches" not in script.said:
        return {}
    count, _, patience = script.said["switches"].value.partition("@")
    if count != "1":
        script.note("switches", "not honoured but for 1: nodes are near by rack and spine")
        return {}
    if patience:
        script.note("switches", f"preferred, for as long as it waits: {patience} is not counted")
    return {"rack": PREFERRED if patience else REQUIRED}


def _resources(script: Script) -> dict[str, Any]:
    """Slurm counts nodes, tasks, CPUs and GPUs; a job has nodes, and of each its CPUs, GPUs and
    memory.
    """
    devices = _devices(script)
    tasks, each = script.number("ntasks"), script.number("ntasks-per-node")
    nodes, most = _nodes(script, devices, tasks, each)
    each = each or -(-tasks // nodes) or 1
    if each > 1:
        script.note(
            "ntasks-per-node" if "ntasks-per-node" in script.said else "ntasks",
            (
                f"the script runs once on each node, with the CPUs of its {each} tasks: start "
                "them there (torchrun, mpirun)"
            ),
        )
    gpus = _gpus(script, devices, nodes, each)
    cpus = script.number("cpus-per-gpu") * gpus or (script.number("cpus-per-task") or 1) * each
    memory = _memory(script, cpus, gpus)
    said_cpus = any(
        flag in script.said
        for flag in ("ntasks", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu")
    )
    job: dict[str, Any] = {"nodes": nodes, "gpus": gpus} | (
        {"nodes_max": most} if most > nodes else {}
    )
    if said_cpus or gpus == 0:
        job["cpus"] = cpus
    if memory:
        job["memory_bytes"] = memory
    kinds = sorted({device.kind for device in devices.values() if device.kind})
    if len(kinds) > 1:
        raise Refused(f"{script.name}: one job has one kind of GPU, not {' and '.join(kinds)}")
    return job | (
        {"mig_profile": kinds[0]}
        if kinds and kinds[0] in PROFILES
        else {"model": kinds}
        if kinds
        else {}
    )


def _devices(script: Script) -> dict[str, values.Devices]:
    """What each flag about GPUs says."""
    flags = ("gpus", "gpus-per-node", "gpus-per-task")
    found = {
        flag: script.value(flag, values.devices, values.Devices())
        for flag in flags
        if flag in script.said
    }
    for item in script.words("gres"):
        kind, _, rest = item.partition(":")
        if kind in ("gpu", "gres/gpu"):
            found["gres"] = _generic(script, rest)
        elif kind != "none":
            script.note("gres", f"{item} is not honoured: GPUs are counted, nothing else")
    return found


def _generic(script: Script, text: str) -> values.Devices:
    """Of `--gres=gpu:h100:4` what stands behind `gpu:`; without that it is one."""
    try:
        return values.devices(text or "1")
    except ValueError as error:
        raise script.fault("gres", str(error)) from None


def _nodes(
    script: Script, devices: Mapping[str, values.Devices], tasks: int, each: int
) -> tuple[int, int]:
    """The fewest and the most: as said, else as many as the totals need."""
    most = 0
    if "nodes" in script.said:
        nodes, most = script.value("nodes", values.span, (1, 1))
    elif tasks and each:
        nodes = -(-tasks // each)
    elif "gpus" in devices and "gpus-per-node" in devices:
        nodes = -(-devices["gpus"].gpus // max(1, devices["gpus-per-node"].gpus))
    else:
        nodes = 1
    if most > nodes and (tasks or "gpus" in devices):
        script.note(
            "nodes", f"{nodes} nodes: what is counted over all of them does not grow with them"
        )
        most = nodes
    most = max(nodes, most)
    if most > 1:
        flag = next(flag for flag in ("nodes", "ntasks", "gpus") if flag in script.said)
        counts = f"{nodes} to {most}" if most > nodes else f"{most}"
        script.note(
            flag, f"the script runs on each of the {counts} nodes, in Slurm on the first one only"
        )
    return nodes, most


def _gpus(script: Script, devices: Mapping[str, values.Devices], nodes: int, tasks: int) -> int:
    """On each node. Raises Refused for a number that nodes cannot share evenly."""
    for flag in ("gpus-per-node", "gres"):
        if flag in devices:
            return devices[flag].gpus
    if "gpus" in devices:
        if devices["gpus"].gpus % nodes:
            raise script.fault(
                "gpus", f"{nodes} nodes cannot share these evenly: say --gpus-per-node"
            )
        return devices["gpus"].gpus // nodes
    return devices["gpus-per-task"].gpus * tasks if "gpus-per-task" in devices else 0


def _memory(script: Script, cpus: int, gpus: int) -> int:
    """Bytes on each node."""
    if "mem" in script.said and script.value("mem", values.size_bytes, 0) == 0:
        script.note("mem", "0 (all of a node) is not honoured: say how much")
    return (
        script.value("mem", values.size_bytes, 0)
        or script.value("mem-per-gpu", values.size_bytes, 0) * gpus
        or script.value("mem-per-cpu", values.size_bytes, 0) * cpus
    )
