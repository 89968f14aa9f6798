"""Writes the programs sbatch, srun ... into a directory: each calls Muster's version of it.

The programs name the interpreter that wrote them, so they work from any directory and from other
environments. Tests: tests/unit/test_slurm_jobs.py.
"""

import os
import shlex
import sys
from pathlib import Path
from typing import Final

from libs.common.errors import Refused

PROGRAMS: Final = {
    "sbatch": "sbatch [FLAGS] SCRIPT [ARGS]: submit a script, or a command with --wrap.",
    "srun": "srun [FLAGS] COMMAND [ARGS]: run a command on each node and wait for it.",
    "salloc": "salloc [FLAGS] [COMMAND]: hold GPUs while a command runs here.",
    "squeue": "squeue [FLAGS]: list jobs that wait or run.",
    "scancel": "scancel [FLAGS] JOB...: end jobs.",
    "sinfo": "sinfo [FLAGS]: list nodes by state.",
    "sacct": "sacct [FLAGS]: list jobs with their ends.",
    "scontrol": "scontrol show job|node, hold, release, requeue.",
}
MARK: Final = "# Written by muster slurm-shims."
MODE: Final = 0o755


def shim(program: str, interpreter: str, path: str) -> str:
    """Return the text of one program. `path` is where the interpreter finds Muster besides."""
    kept = f"export PYTHONPATH={shlex.quote(path)}\n" if path else ""
    call = f'exec {shlex.quote(interpreter)} -P -m libs.cli.slurm {program} "$@"'
    return f"#!/bin/sh\n{MARK}\n{kept}{call}\n"


def write(folder: Path, force: bool = False) -> list[Path]:
    """Write all programs and return their paths.

    Raises Refused for a file that this command did not write, unless `force` is set.
    """
    paths = [folder / program for program in PROGRAMS]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            if path.exists() and not force and MARK not in _head(path):
                raise Refused(
                    f"{path} exists, and muster slurm-shims did not write it: choose another "
                    "directory, or overwrite it with --force"
                )
        for path in paths:
            _replace(path, shim(path.name, sys.executable, os.environ.get("PYTHONPATH", "")))
    except OSError as error:
        raise Refused(
            f"cannot write to {folder}: {error.strerror}; choose a directory of your own"
        ) from error
    return paths


def _head(path: Path) -> str:
    with path.open(errors="replace") as file:
        return file.read(200)


def _replace(path: Path, text: str) -> None:
    """Write a file so that a program that runs now keeps the old one."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text)
    beside.chmod(MODE)
    beside.replace(path)
