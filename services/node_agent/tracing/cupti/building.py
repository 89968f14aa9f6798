"""Builds the CUPTI library on the node, where a C compiler and CUPTI's headers are.

The result has the digest of the source in its name, so that a new version is built again. Tests:
tests/cupti/test_muster_trace.py.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("muster_trace.c")
COMPILERS: Final = ("cc", "gcc", "clang")
HEADER: Final = "cupti.h"
FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC")
LIBRARIES: Final = ("-ldl", "-lpthread")
DIGITS: Final = 12
BUILD_S: Final = 60.0
# Where CUDA's installers and NVIDIA's wheels put CUPTI's headers.
PLACES: Final = (
    "{cuda}/extras/CUPTI/include",
    "{cuda}/include",
    "/usr/local/cuda*/extras/CUPTI/include",
    "/usr/local/cuda*/include",
    "/usr/include",
    "{site}/nvidia/*/include",
)
# The folders of Python's packages; a virtual environment can have several.
SITES: Final = ("site-packages", "dist-packages")


class NotBuilt(Exception):
    """The library cannot be built here; the text says why."""


def headers(cuda: str = "") -> list[str]:
    """Return the folders that have CUPTI's header, the best first."""
    sites = [path for path in sys.path if path.endswith(SITES)] or [""]
    found = [
        folder
        for place in PLACES
        for site in (sites if "{site}" in place else ("",))
        for folder in sorted(glob(place.format(cuda=cuda or "/nowhere", site=site)), reverse=True)
        if os.path.exists(f"{folder}/{HEADER}")
    ]
    return list(dict.fromkeys(found))


def built(folder: Path, include: Sequence[str]) -> Path:
    """Return the library in `folder`; build it if it is not there. Blocks. Raises NotBuilt."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NotBuilt(f"there is no C compiler: install one of {', '.join(COMPILERS)}")
    if not include:
        raise NotBuilt(f"{HEADER} is not found: install CUDA's CUPTI, or set CUDA_HOME")
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:DIGITS]
    target = folder / f"libmuster_trace.{digest}.so"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}")
    line = [compiler, *FLAGS, *(f"-I{path}" for path in include), "-o", str(part), str(SOURCE)]
    try:
        done = subprocess.run(
            [*line, *LIBRARIES], capture_output=True, text=True, timeout=BUILD_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"{compiler}: {error}") from error
    if done.returncode:
        part.unlink(missing_ok=True)
        raise NotBuilt(f"{compiler}: {done.stderr.strip()[:500]}")
    part.rename(target)
    return target
