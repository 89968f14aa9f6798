"""A Kubernetes manifest, an #SBATCH script with an array, and an allocation with an image run in
containers of a real engine, as they are (`make test-containers`).

The tests are skipped without an engine (MUSTER_CONTAINER_ENGINE, or Docker's socket).
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from containers_world import ENGINE, IMAGE, WHY_NOT, files, image, removed_image  # noqa: F401
from registry_world import registry

from libs.cli.formats.jobfile import read_jobs
from libs.cli.formats.sbatch import read_script
from libs.common.container_spec import registry_of, registry_secret
from tests.chaos.cluster import Chaos, running

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

WITHIN_S: Final = 60.0
MANIFEST: Final = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: train}}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: {image}
          command: [sh, -c]
          args: ["cat /data/set $(SEED); pwd; touch /in/y && ls /in"]
          workingDir: /etc
          env: [{{name: SEED, value: /data/seed}}]
          resources: {{requests: {{cpu: 100m, memory: 256Mi}}}}
          volumeMounts:
            - {{name: sets, mountPath: /data, readOnly: true}}
            - {{name: scratch, mountPath: /in}}
            - {{name: shm, mountPath: /dev/shm}}
      volumes:
        - {{name: sets, hostPath: {{path: {data}, type: Directory}}}}
        - {{name: scratch, emptyDir: {{}}}}
        - {{name: shm, emptyDir: {{medium: Memory, sizeLimit: 1Mi}}}}
"""
SCRIPT: Final = """\
#!/bin/sh
#SBATCH --container-image={image} --job-name=array
#SBATCH --container-mounts={data}:/data:ro
#SBATCH --array=0-1
#MUSTER --cache=own
cat /data/set
echo "element $SLURM_ARRAY_TASK_ID"
"""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Chaos]:
    settings = {
        "MUSTER_CONTAINER_ENGINE": ENGINE,
        "MUSTER_CONTAINER_MOUNTS": str(tmp_path / "data"),
    }
    (tmp_path / "data").mkdir()
    (tmp_path / "data/set").write_text("the set\n")
    (tmp_path / "data/seed").write_text("the seed\n")
    async with running(tmp_path, nodes=1, gpus=2, **settings) as found:
        yield found


async def submitted(cluster: Chaos, body: dict[str, Any], path: str = "/v1/jobs") -> str:
    status, said = await cluster.try_once("POST", path, json=body)
    assert status == 201, said
    return str(said["id"])


async def ended(cluster: Chaos, job: str) -> dict[str, Any]:
    async with asyncio.timeout(WITHIN_S):
        while True:
            found: dict[str, Any] = await cluster.get(f"/v1/jobs/{job}")
            if found["state"] in ("completed", "failed", "cancelled", "rejected"):
                return found
            await asyncio.sleep(0.1)


async def printed(cluster: Chaos, job: str) -> str:
    found = await ended(cluster, job)
    assert found["exit_code"] == 0, found
    async with cluster.session.get(f"/v1/jobs/{job}/output") as answer:
        return await answer.text()


def found_in(folder: Path, text: bytes) -> list[Path]:
    """Files below a folder that hold the text."""
    written = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in written if text in path.read_bytes()]


async def test_a_manifest_runs_as_it_is(cluster: Chaos, tmp_path: Path) -> None:
    (written,) = read_jobs(MANIFEST.format(image=IMAGE, data=tmp_path / "data"), "k.yaml")
    assert written.warnings == ()
    told = await printed(cluster, await submitted(cluster, written.job))
    assert told == "the set\nthe seed\n/etc\ny\n"


async def test_a_script_with_an_array_runs_as_it_is(cluster: Chaos, tmp_path: Path) -> None:
    text = SCRIPT.format(image=IMAGE, data=tmp_path / "data")
    written = read_script(text, "x.sbatch", {})
    assert written.warnings == ()
    array = await submitted(cluster, written.job)
    assert (await ended(cluster, array))["state"] == "completed"
    for element in range(2):
        told = await printed(cluster, f"{array}_{element}")
        assert told == f"the set\nelement {element}\n"


async def test_the_password_of_a_registry_reaches_one_pull_and_no_file(
    cluster: Chaos, tmp_path: Path
) -> None:
    async with registry() as store:
        digest = store.add("team/x:1", files(6 << 20))
        store.password, store.pause_s = "pass-for-one-pull", 0.1
        name = store.named("team/x:1")
        denied = await submitted(cluster, {"image": name, "command": ["true"]})
        assert (await ended(cluster, denied))["exit_code"] == 125
        login = json.dumps({"username": "ann", "password": store.password})
        secret = f"/v1/secrets/{registry_secret(registry_of(name))}"
        status, said = await cluster.try_once("PUT", secret, json={"value": login})
        assert status == 201, said
        job = await submitted(cluster, {"image": name, "command": ["echo", "ran"]})
        seen: set[str] = set()
        async with asyncio.timeout(WITHIN_S):
            while (await cluster.get(f"/v1/jobs/{job}"))["state"] != "completed":
                pulls = (await cluster.get(f"/v1/jobs/{job}/pulls"))["pulls"]
                seen |= {each["progress"] for each in pulls}
        assert any(" MiB, 0 of 1 layers" in each for each in seen), seen
        assert await printed(cluster, job) == "ran\n"
        assert any(digest in str(fact) for fact in await cluster.history(job))
        removed_image(name)
    assert found_in(tmp_path, b"pass-for-one-pull") == []


async def test_an_allocation_holds_a_container_until_it_is_released(cluster: Chaos) -> None:
    job = await submitted(cluster, {"image": IMAGE, "gpus": 1}, "/v1/allocations")
    async with asyncio.timeout(WITHIN_S):
        while (await cluster.get(f"/v1/jobs/{job}"))["state"] != "running":
            await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    assert (await cluster.get(f"/v1/jobs/{job}"))["state"] == "running"
    status, _ = await cluster.try_once("DELETE", f"/v1/allocations/{job}")
    assert status in (200, 202, 204)
    assert (await ended(cluster, job))["state"] in ("completed", "cancelled")
