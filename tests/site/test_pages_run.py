"""The commands of the tutorial and of the deployment guide, in order, against real clusters.

`make site-test` runs them. Each page runs in one shell, in a folder of its own.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from libs.embedded import servers
from tests.commands import blocks
from tests.examples.world import programs
from tests.tidy import ROOT

pytestmark = [pytest.mark.drill, pytest.mark.timeout(600)]

PATIENCE_S: Final = 540.0
END: Final = "::end of block "


def script_of(page: str, replaced: dict[str, str]) -> tuple[str, list[str]]:
    """Return the page's commands as one script, and what each block must print."""
    found = [block for block in blocks((ROOT / "docs" / page).read_text()) if block.runs]
    lines = ["set -eu -o pipefail"]
    for number, block in enumerate(found):
        text = block.script
        for name, value in replaced.items():
            text = text.replace(name, value)
        lines += [text, f"echo; echo '{END}{number}'"]
    return "\n".join(lines), [block.expected for block in found]


def run_page(page: str, folder: Path, replaced: dict[str, str], **more: str) -> None:
    """Run a page's commands, and check what each block prints. Stop clusters that are left."""
    script, expected = script_of(page, replaced)
    environment = {
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PATH": f"{programs(folder / 'bin')}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MUSTER_CONFIG_DIR": "",
        "MUSTER_CGROUP": "",
        "CHECKOUT": str(ROOT),
        "MUSTER_GATEWAY_GRPC_PORT": "0",
        "MUSTER_JOB_USERS": "*=self",
        **more,
    }
    process = subprocess.Popen(
        ["bash", "-c", script],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=(folder / "said").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        process.wait(PATIENCE_S)
    finally:
        stop(process, folder, environment)
    said = (folder / "said").read_text()
    print(said)
    parts = re.split(rf"^{END}\d+$", said, flags=re.MULTILINE)
    for number, text in enumerate(expected):
        assert len(parts) > number + 1, f"block {number + 1} failed:\n{parts[-1]}"
        assert text in parts[number], (
            f"block {number + 1} does not print {text!r}:\n{parts[number]}"
        )


def stop(process: "subprocess.Popen[bytes]", folder: Path, environment: dict[str, str]) -> None:
    """Stop the clusters that the page has started and not stopped, and its processes."""
    for state in (".muster", "muster-tour/.muster", "state", "head"):
        if (folder / state).exists():
            line = f"muster down --state {folder / state}"
            subprocess.run(["sh", "-c", line], env=environment, capture_output=True, check=False)
    try:
        os.killpg(process.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass


def test_the_tutorial_runs(tmp_path: Path) -> None:
    (port,) = servers.free_ports(1)
    run_page(
        "tutorial.md", tmp_path, {"muster up --background": f"muster up --background --port {port}"}
    )


def test_the_deployment_guide_runs(tmp_path: Path) -> None:
    port, join_port = servers.free_ports(2)
    addresses = {"18080": str(port), "10.0.0.1": "127.0.0.1"}
    run_page("deployment_guide.md", tmp_path, addresses, MUSTER_GATEWAY_TLS_PORT=str(join_port))
