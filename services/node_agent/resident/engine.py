"""The start of an engine: the versions of its packages, and the model's configuration.

Command, PATH and weights are paths of the job's user, who may put anything there. So they are read
as that user, within bounds, and only where they are files. Tests: tests/unit/test_engine_start.py.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from libs.common.messages import StartOrder
from libs.common.model import Gpu
from libs.common.safety import plain_file
from services.node_agent.directories.acting_as import acting_as
from services.node_agent.directories.protocol import Launch
from services.node_agent.resident import fingerprint

ENGINES: Final = (
    "vllm",
    "sglang",
    "torch",
    "triton",
    "deep_gemm",
    "flashinfer",
    "transformers",
    "tensorrt_llm",
)
LINE_BYTES: Final = 512
PYTHON: Final = "python"
PACKAGE: Final = ".dist-info"
CONFIGURATION: Final = "config.json"
CONFIGURATION_BYTES: Final = 16 << 20
# Most names that are read in one folder, and most package folders of one Python. Others are left
# out.
NAMES_MAX: Final = 20_000
LIBRARIES_MAX: Final = 8


def key_of_start(
    launch: Launch,
    order: StartOrder,
    gpus: Sequence[Gpu],
    drivers: Mapping[str, str],
    weights: str = "",
) -> str:
    """Return the key of the way in which a replica's engine starts (`fingerprint.key_of`).

    `weights`: the folder with the model's configuration, empty if it does not matter. Raises
    OSError if the agent cannot act as the job's user.
    """
    with acting_as(launch.account.ids if launch.account is not None else ()):
        packages = packages_of(order.spec.command[0], launch.env)
        configuration = configuration_of(weights) if weights else ""
    return fingerprint.key_of(order, gpus, drivers, packages, configuration)


def configuration_of(weights: str) -> str:
    """Return the SHA-256 of the model's configuration; empty if there is none.

    If it is larger than CONFIGURATION_BYTES, the hash covers the beginning and the size.
    """
    try:
        data, size = plain_file.beginning(f"{weights}/{CONFIGURATION}", CONFIGURATION_BYTES)
    except (OSError, ValueError):
        return ""
    digest = hashlib.sha256(data)
    if size > len(data):
        digest.update(f"{size}".encode())
    return digest.hexdigest()


def packages_of(program: str, env: Mapping[str, str]) -> list[str]:
    """Return the names of the engine's installed packages with their versions.

    The command is a Python, or a script whose first line names one. For any other program the
    result is its own size and time of change, and its name if even these cannot be read.
    """
    try:
        found = shutil.which(program, path=env.get("PATH", os.defpath))
        if found is None:
            return [program]
        interpreter = found if PYTHON in os.path.basename(found) else _interpreter(found)
        if packages := _packages(interpreter):
            return packages
        status = os.stat(found)
    except (OSError, ValueError):
        return [program]
    return [f"{found} {status.st_size} {status.st_mtime_ns}"]


def _packages(interpreter: str) -> list[str]:
    """Return the packages of engines that are installed for this Python, sorted."""
    if not interpreter:
        return []
    lib = os.path.join(os.path.dirname(os.path.dirname(interpreter)), "lib")
    pythons = islice((name for name in _names(lib) if name.startswith(PYTHON)), LIBRARIES_MAX)
    return sorted(
        name
        for python in pythons
        for name in _names(os.path.join(lib, python, "site-packages"))
        if name.endswith(PACKAGE) and name.split("-", 1)[0].lower().startswith(ENGINES)
    )


def _names(folder: str) -> Iterator[str]:
    """Yield the names in a folder; none if it cannot be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, NAMES_MAX):
            yield entry.name


def _interpreter(script: str) -> str:
    """Return the Python that a script's first line names; empty if it names none."""
    try:
        line = plain_file.beginning(script, LINE_BYTES)[0].split(b"\n", 1)[0]
    except OSError:
        return ""
    if not line.startswith(b"#!"):
        return ""
    words = line[2:].decode("utf-8", "replace").split()
    return words[0] if words and PYTHON in os.path.basename(words[0]) else ""
