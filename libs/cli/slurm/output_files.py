"""The files of `sbatch -o` and `-e`: a shell command that redirects the job's output on its node.

Without these flags Muster keeps the output, and nothing is redirected. Pure. Tests:
tests/unit/test_slurm_output_files.py.
"""

import re
import shlex
from typing import Final

from libs.common.errors import Refused

# The variable of the job for each letter of a pattern.
VARIABLES: Final = {
    "j": "SLURM_JOB_ID",
    "J": "SLURM_JOB_ID",
    "A": "SLURM_ARRAY_JOB_ID",
    "a": "SLURM_ARRAY_TASK_ID",
    "x": "SLURM_JOB_NAME",
    "u": "SLURM_JOB_USER",
    "N": "MUSTER_NODE_ID",
    "n": "SLURM_NODEID",
    "t": "SLURM_PROCID",
}
# Letters that differ between the nodes of a job.
BY_NODE: Final = ("N", "n", "t")
# For a job that is no array: %A is the job, as in Slurm.
DEFAULTS: Final = {
    "A": "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}",
    "a": "${SLURM_ARRAY_TASK_ID:-4294967294}",
}
NOWHERE: Final = "/dev/null"

_LETTER: Final = re.compile(r"%([0-9]{0,2})(.)")


def redirected(command: list[str], out: str, err: str, append: bool, nodes: int) -> list[str]:
    """Return the command with its output in files. Raises Refused for a pattern that is not valid.

    In a job of several nodes, a file whose name is the same on all nodes is written by the first
    node alone; the others' output stays with Muster.
    """
    if not (out or err):
        return command
    sign = ">>" if append else ">"
    lines = []
    if out:
        both = "" if err else " 2>&1"
        lines.append(_guarded(f"exec {sign}{path_of(out)}{both}", out, nodes))
    if err:
        lines.append(_guarded(f"exec 2{sign}{path_of(err)}", err, nodes))
    return ["/bin/sh", "-c", "\n".join([*lines, 'exec "$@"']), "sbatch", *command]


def _guarded(line: str, pattern: str, nodes: int) -> str:
    alone = (
        nodes > 1
        and pattern != NOWHERE
        and not any(found[2] in BY_NODE for found in _LETTER.finditer(pattern))
    )
    return f'if [ "$SLURM_NODEID" = 0 ]; then {line}; fi' if alone else line


def path_of(pattern: str) -> str:
    """Return the file name of a pattern such as `logs/%x-%j.out` as a word of a shell.

    Raises Refused for a letter that Muster has no value for.
    """
    words: list[str] = []
    end = 0
    for found in _LETTER.finditer(pattern):
        words.append(_literal(pattern[end : found.start()]))
        end = found.end()
        digits, letter = found.groups()
        if letter == "%":
            words.append("%")
        elif letter not in VARIABLES:
            known = ", ".join(f"%{each}" for each in VARIABLES)
            raise Refused(f"%{letter} in the file name {pattern!r} is not supported: use {known}")
        else:
            words.append(_value(letter, digits))
    return "".join([*words, _literal(pattern[end:])])


def _value(letter: str, digits: str) -> str:
    value = DEFAULTS.get(letter, f"${{{VARIABLES[letter]}}}")
    if digits and letter in ("a", "n", "t"):
        return f'"$(printf %0{digits}d "{value}")"'
    return f'"{value}"'


def _literal(text: str) -> str:
    return shlex.quote(text) if text else ""
