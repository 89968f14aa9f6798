"""Two versions at once: the wheel of an earlier commit beside these sources, over one log.

The earlier commit is the one before, or MUSTER_TEST_BASE. Its `muster up` makes the cluster, its
agents stay when this version takes the cluster over, and its commands ask the new gateway.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from tests.integration.backup_world import PATIENCE_S, Machine, World
from tests.tidy import ROOT

BASE = os.environ.get("MUSTER_TEST_BASE", "HEAD~1")
LONG_S = 300.0


def why_not() -> str:
    if shutil.which("git") is None:
        return "git is missing, which holds the earlier commit"
    line = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{BASE}^{{commit}}"]
    found = subprocess.run(line, capture_output=True, check=False)
    return f"these sources are no git repository with {BASE}" if found.returncode else ""


pytestmark = [pytest.mark.drill, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of the earlier commit and unpack it, as an installation does."""
    folder = tmp_path_factory.mktemp("earlier")
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", BASE], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as sources:
        # Python 3.11.4 has the argument; the archive is this repository's own.
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        sources.extractall(folder / "sources", **safely)
    line = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    more = ["--no-index", "-w", str(folder), str(folder / "sources")]
    subprocess.run([*line, *more], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "installed")
    return folder / "installed"


@pytest.fixture
def world(tmp_path: Path, earlier: Path) -> Iterator[World]:
    # On a busy machine an agent takes long to start, and its jobs must live until then.
    found = World(tmp_path, earlier, MUSTER_LEASE_MS="60000")
    yield found
    found.close()


def down(world: World) -> None:
    """Stop the cluster as before an upgrade; jobs go on under their supervisors."""
    world.launcher.terminate()
    world.launcher.wait(PATIENCE_S)


def is_running(world: World, *jobs: str) -> bool:
    found = world.jobs()
    return all((found[job]["state"], found[job]["attempt"]) == ("running", 1) for job in jobs)


def all_healthy(world: World, count: int) -> bool:
    states = [node["state"] for node in world.get("/v1/nodes")["nodes"]]
    return states == ["healthy"] * count


@pytest.mark.timeout(400)
def test_this_version_takes_over_from_the_one_before_while_jobs_run(
    world: World, earlier: Path
) -> None:
    world.machines = [Machine(world, "m1", earlier), Machine(world, "m2", earlier)]
    world.until(lambda: all_healthy(world, 2), "the earlier version's machines are healthy")
    jobs = [world.submit(LONG_S) for _ in range(3)]
    world.until(lambda: is_running(world, *jobs), "jobs run")
    seq = world.get("/v1/cluster")["seq"]
    before = world.get(f"/v1/jobs/{jobs[0]}")

    down(world)
    world.code = ROOT
    world.up()
    assert world.get("/v1/cluster")["seq"] > seq
    world.until(lambda: all_healthy(world, 2), "old agents work with new services")
    assert is_running(world, *jobs)
    after = world.get(f"/v1/jobs/{jobs[0]}")
    assert {key: after[key] for key in ("id", "command", "node_ids", "submitted_at")} == {
        key: before[key] for key in ("id", "command", "node_ids", "submitted_at")
    }
    said = world.cli("ps", "--all", "-o", "json", sources=earlier)
    assert {job["id"] for job in json.loads(said)} >= {*jobs}
    later = world.submit(0.1)
    world.until(lambda: world.jobs()[later]["state"] == "completed", "an old agent runs new jobs")

    world.machines[0].code = ROOT
    world.machines[0].process.terminate()
    world.until(
        lambda: world.get("/v1/nodes/m1")["node"]["incarnation"] > 1 and all_healthy(world, 2),
        "an agent is upgraded",
    )
    assert is_running(world, *jobs)
    assert "the chain is whole" in world.cli("audit", "verify", sources=earlier)
