"""The entry of Slurm's commands: `python -m libs.cli.slurm squeue -u ada`.

An error is one line on stderr, and the exit code is 1, as with Slurm.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from libs.cli.slurm.shims import PROGRAMS
from libs.common.errors import MusterError

INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141
# Programs whose -h leaves out the headers.
LISTS: Final = ("squeue", "sinfo", "sacct")
# Programs whose first word that is no flag begins a command with flags of its own.
RUNNERS: Final = ("sbatch", "srun", "salloc")


def main(words: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    program, *rest = words or ("",)
    if program not in PROGRAMS:
        print(f"muster: {program!r} is none of {', '.join(PROGRAMS)}", file=sys.stderr)
        return 1
    own = own_words(program, rest)
    if "--version" in own or (rest and rest[0] == "-V"):
        from libs.cli.verbs.version import version_line

        print(f"{program}: {version_line()}")
        return 0
    if "--help" in own or "--usage" in own or (rest == ["-h"] and program not in LISTS):
        print(f"{PROGRAMS[program]}\nFlags and differences: docs/howto/come-from-slurm.md")
        return 0
    try:
        code = int(import_module(f"libs.cli.slurm.{program}").main(rest))
        sys.stdout.flush()
    except MusterError as error:
        print(f"{program}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def own_words(program: str, words: Sequence[str]) -> list[str]:
    """Return the words that may be flags of the program itself, not of the command that it runs."""
    ends = (place for place, word in enumerate(words) if word == "--" or _begins(program, word))
    return list(words[: next(ends, len(words))])


def _begins(program: str, word: str) -> bool:
    return program in RUNNERS and not word.startswith("-")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
