"""Environments of other people's clients and of the model server, made once under .venv.

They cannot be installed beside Muster: each has requirements of its own.
"""

import fcntl
import json
import shutil
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.tidy import ROOT

HOME: Final = ROOT / ".venv" / "clients"
CLIENTS: Final = ("litellm==1.110.2", "langchain-openai==1.7.4")
SERVER: Final = ("xllamacpp==2026.10.11549", "gguf==0.19.0")
NODE: Final = {"openai": "7.57.0"}
INSTALL_S: Final = 400


def python_with(name: str, packages: tuple[str, ...]) -> Path:
    """Return the interpreter of an environment with these packages; skip if there is none."""
    folder = HOME / name

    def install() -> list[str]:
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        return [*pip, "--disable-pip-version-check", "--retries", "1", *packages]

    return _once(folder, " ".join(packages), install) / "bin" / "python"


def node_with(packages: dict[str, str]) -> Path:
    """Return a folder in which Node.js finds these packages; skip if there is none."""
    if not shutil.which("npm"):
        pytest.skip("npm is not installed here (Debian, Ubuntu: apt install nodejs npm)")
    folder = HOME / "node"

    def install() -> list[str]:
        folder.mkdir(parents=True, exist_ok=True)
        described = {"private": True, "type": "module", "dependencies": packages}
        (folder / "package.json").write_text(json.dumps(described))
        return ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)]

    return _once(folder, json.dumps(packages), install)


def _once(folder: Path, what: str, install: Callable[[], list[str]]) -> Path:
    """Install unless exactly this was installed here before."""
    HOME.mkdir(parents=True, exist_ok=True)
    noted = folder / ".installed"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not noted.exists() or noted.read_text() != what:
            done = subprocess.run(install(), capture_output=True, text=True, timeout=INSTALL_S)
            if done.returncode:
                pytest.skip(f"{what} cannot be installed here: {done.stderr.strip()[-300:]}")
            noted.write_text(what)
    return folder
