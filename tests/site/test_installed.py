"""The first step of the tutorial: the wheel of this project in an empty environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import RUN_BY, blocks
from tests.tidy import ROOT

pytestmark = [pytest.mark.drill, pytest.mark.timeout(600)]

PATIENCE_S = 540.0


def test_the_wheel_installs_as_the_tutorial_says(tmp_path: Path) -> None:
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path / "dist"]
    subprocess.run([*wheel, ROOT], check=True, timeout=PATIENCE_S)
    found = blocks((ROOT / "docs" / "tutorial.md").read_text())
    (install,) = [each.script for each in found if each.mark.startswith(RUN_BY)]
    done = subprocess.run(
        ["bash", "-c", f"set -eu\n{install}\nmuster version\n"],
        cwd=tmp_path,
        env={**os.environ, "PIP_FIND_LINKS": str(tmp_path / "dist"), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0 and "muster" in done.stdout, done.stdout + done.stderr
