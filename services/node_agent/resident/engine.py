"""The versions of an engine that is a Python program, read from its packages without running it."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

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


def packages_of(program: str, env: Mapping[str, str]) -> list[str]:
    """Return the names of the engine's installed packages with their versions.

    The command is a Python, or a script whose first line names one. For any other program the
    result is its own size and time of change.
    """
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        return [program]
    interpreter = found if PYTHON in os.path.basename(found) else _interpreter(found)
    lib = Path(interpreter).parent.parent / "lib" if interpreter else None
    packages = [
        folder.name
        for folder in (lib.glob("python*/site-packages/*.dist-info") if lib is not None else ())
        if folder.name.split("-", 1)[0].lower().startswith(ENGINES)
    ]
    if packages:
        return sorted(packages)
    status = os.stat(found)
    return [f"{found} {status.st_size} {status.st_mtime_ns}"]


def _interpreter(script: str) -> str:
    """Return the Python that a script's first line names; empty if it names none."""
    with open(script, "rb") as stream:
        line = stream.readline(LINE_BYTES)
    if not line.startswith(b"#!"):
        return ""
    words = line[2:].decode("utf-8", "replace").split()
    return words[0] if words and PYTHON in os.path.basename(words[0]) else ""
