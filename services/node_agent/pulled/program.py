"""Packs the program of a pull into one file that every user of the machine can read.

The place where Muster is installed may be closed to the users of jobs. The file is named by its
content, so agents of several versions can share a folder.
"""

import io
import os
import stat
import sys
import threading
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Final

import libs.job.pulling
from libs.common.errors import Refused
from services.node_agent.directories.job_ownership import is_passable

PACKAGES: Final = ("libs", "libs/job", "libs/job/pulling")
MAIN: Final = "__main__.py"
DATE: Final = (1980, 1, 1, 0, 0, 0)
DIGITS: Final = 12
READABLE: Final = 0o644


def packed(folder: Path) -> Path:
    """Return the path of the program below the agent's folder. Raises OSError."""
    data = _content()
    path = folder / f"pull-{sha256(data).hexdigest()[:DIGITS]}.pyz"
    if not path.exists():
        # Each thread has its own draft, because two first pulls may begin at once.
        draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.draft")
        draft.write_bytes(data)
        draft.chmod(READABLE)
        draft.rename(path)
    return path


def _content() -> bytes:
    root = Path(libs.job.pulling.__file__).parents[3]
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as archive:
        for package in PACKAGES:
            names = sorted((root / package).glob("*.py"))
            for path in names if package == PACKAGES[-1] else [root / package / "__init__.py"]:
                name = MAIN if path.name == MAIN else f"{package}/{path.name}"
                archive.writestr(zipfile.ZipInfo(name, DATE), path.read_bytes())
    return into.getvalue()


def python_of(has_account: bool, path: str) -> str:
    """Return the Python that runs the program: the agent's own, where the job's user may run it,
    else the machine's. `path` is the job's PATH. Raises Refused.
    """
    if not has_account:
        return sys.executable
    folders = [each for each in f"{path}:{os.defpath}".split(":") if each.startswith("/")]
    for found in (sys.executable, *(f"{folder}/python3" for folder in folders)):
        if _is_open(found):
            return found
    raise Refused(
        f"a pull needs Python: the job's user cannot run {sys.executable}, and there is no python3 "
        "in PATH on this node that it can run. Install python3 (3.11 or later)"
    )


def _is_open(program: str) -> bool:
    """Return whether every user of the machine can run a program."""
    real = Path(os.path.realpath(program))
    try:
        is_executable = bool(stat.S_IMODE(os.stat(real).st_mode) & stat.S_IXOTH)
        return is_executable and is_passable(real) and is_passable(Path(program))
    except OSError:
        return False
