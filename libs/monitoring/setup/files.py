"""The board and the rules as files, in the folders of an existing Grafana and Prometheus."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml

from libs.common.errors import Refused
from libs.monitoring.board import UID, board_json

SOURCES: Final = Path(__file__).parents[3] / "deploy"
RULES: Final = SOURCES / "prometheus" / "gpu-cluster-alerts.yaml"
PAGE: Final = "docs/monitoring.md"
BOARD_NAME: Final = f"{UID}.json"
MODE: Final = 0o644
PROMTOOL_S: Final = 60.0


def rules_text(page: str) -> str:
    """Return the rules, with `page` as the address of docs/monitoring.md. Raises Refused."""
    try:
        text = RULES.read_text()
    except OSError as error:
        raise Refused(
            f"{RULES} cannot be read ({error.strerror}): run this in a copy of the project"
        ) from error
    return text.replace(f"{PAGE}#", f"{page}#") if page else text


def counted_rules(text: str) -> int:
    """Return the number of alerts in a text of rules."""
    groups: list[dict[str, Any]] = yaml.safe_load(text)["groups"]
    return sum(len(group["rules"]) for group in groups)


def check_rules(text: str) -> str:
    """Let promtool check the rules, and return what it found in words. Raises Refused if it finds
    a fault.
    """
    program = shutil.which("promtool")
    if program is None:
        return "not checked by promtool, which is not installed"
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        done = subprocess.run(
            [program, "check", "rules", file.name],
            capture_output=True,
            text=True,
            check=False,
            timeout=PROMTOOL_S,
        )
    if done.returncode:
        raise Refused(f"promtool refuses the rules: {' '.join(done.stderr.split())}")
    return "checked by promtool"


def install(folder: Path, name: str, text: str, dry_run: bool) -> str:
    """Write a file whole or not at all, and return what was done in words. Raises Refused."""
    path = folder / name
    if not folder.is_dir():
        raise Refused(f"{folder} is no directory: create it, or name another one with --into")
    if path.exists() and path.read_text() == text:
        return f"{path} is up to date"
    word = "replaces" if path.exists() else "is new"
    if dry_run:
        return f"{path} {word} (dry run: nothing was written)"
    try:
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            file.write(text)
        os.chmod(file.name, MODE)
        os.replace(file.name, path)
    except OSError as error:
        raise Refused(
            f"{path} cannot be written ({error.strerror}): run this as a user who may, or name "
            "another directory with --into"
        ) from error
    return f"wrote {path} ({word if word == 'is new' else 'replaced an older one'})"


def install_board(folder: Path, dry_run: bool) -> str:
    return install(folder, BOARD_NAME, board_json(), dry_run)
