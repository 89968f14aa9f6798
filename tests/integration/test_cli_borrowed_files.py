"""`muster submit` with files of other systems, against a fake gateway that records requests."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_world import Request, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def _tried(request: Request) -> dict[str, object]:
    """As the gateway answers a dry run."""
    spec = {name: value for name, value in request.json.items() if name not in ("user", "cpus")}
    return {
        "dry_run": True,
        "user": request.json["user"],
        "spec": spec,
        "warnings": ["the gateway's"],
    }


def test_files_of_other_systems_become_jobs_with_warnings(world: World) -> None:
    world.routes["POST /v1/jobs"] = _tried
    (world.home / "train.sbatch").write_text("#!/bin/sh\n#SBATCH --gpus=2 --mail-type=END\ntrue\n")
    (world.home / "pod.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nspec:\n  hostPID: true\n  containers:\n  - {command: "
        "[a], workingDir: /w}\n"
    )
    code, out, err = world.run("submit", "--dry-run", "-o", "json", "train.sbatch", "pod.yaml")
    script, pod = json.loads(out)
    assert (code, script["spec"]["gpus"], script["spec"]["workdir"], pod["spec"]["workdir"]) == (
        0,
        2,
        str(world.home),
        "/w",
    )
    mail = (
        "train.sbatch:2: --mail-type: not honoured: mail is not set for one job: use muster notify "
        "add NAME --mail ADDRESS"
    )
    assert script["warnings"] == [mail, "the gateway's"]
    assert pod["warnings"] == [
        "pod.yaml:4: spec.hostPID: not honoured: a job runs on the node itself",
        "the gateway's",
    ]
    assert f"muster: warning: {mail}\n" in err
