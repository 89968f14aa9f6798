"""Plug-ins on a whole embedded cluster: the example package, and one that goes bad while it is
used.
"""

import asyncio
import os
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.cluster import Chaos, running

EXAMPLE = Path("examples/plugin")
TOUCHY = (
    "def key(job, queue, now_ns):\n    return (1 // (job.spec.name != 'boom'), job.spec.gpus)\n"
)
WAIT_S = 60


def install(package: Path, site: Path) -> None:
    """Install a package as pip does: copy its modules and write its metadata beside them."""
    said = tomllib.loads((package / "pyproject.toml").read_text())
    project = said["project"]
    about = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir(parents=True)
    for module in said["tool"]["setuptools"]["py-modules"]:
        shutil.copy(package / f"{module}.py", site)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = [
        [f"[{group}]", *(f"{name} = {where}" for name, where in points.items())]
        for group, points in project["entry-points"].items()
    ]
    (about / "entry_points.txt").write_text(
        "\n".join(line for group in groups for line in group) + "\n"
    )


def touchy(folder: Path) -> Path:
    """A package whose order raises for one job."""
    folder.mkdir()
    (folder / "touchy.py").write_text(TOUCHY)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "touchy"\nversion = '
        '"0.1"\n[project.entry-points."muster.orders"]\ntouchy = "touchy:key"\n'
        '[tool.setuptools]\npy-modules = ["touchy"]\n'
    )
    return folder


async def submit(chaos: Chaos, **fields: object) -> str:
    status, body = await chaos.try_once("POST", "/v1/jobs", json={"command": ["true"], **fields})
    assert status == 201, body
    return str(body["id"])


async def over(chaos: Chaos, job_id: str) -> dict[str, Any]:
    async with asyncio.timeout(WAIT_S):
        while (job := await chaos.get(f"/v1/jobs/{job_id}"))["state"] not in (
            "completed",
            "failed",
        ):
            await asyncio.sleep(0.1)
    return job


async def queue(chaos: Chaos, name: str) -> dict[str, Any]:
    (found,) = [each for each in (await chaos.get("/v1/queues"))["queues"] if each["name"] == name]
    return found


@pytest.mark.timeout(240)
async def test_the_example_orders_and_scores_and_one_that_raises_is_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(EXAMPLE, tmp_path / "site")
    install(touchy(tmp_path / "touchy"), tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{os.getcwd()}")
    async with running(tmp_path / "cluster", 1, 2) as chaos:
        for name, policy in (("small", "smallest_first"), ("nervous", "touchy")):
            status, body = await chaos.try_once(
                "PUT", f"/v1/queues/{name}", json={"policy": policy}
            )
            assert (status, body["note"]) == (201, ""), body
        status, body = await chaos.try_once("PUT", "/v1/queues/x", json={"policy": "largest_first"})
        assert status == 422 and "smallest_first" in body["detail"]
        await submit(chaos, queue="small", gpus=2, command=["sleep", "1"])
        large, small = [
            await submit(chaos, queue="small", gpus=gpus, placement="widest") for gpus in (2, 1)
        ]
        later, sooner = await over(chaos, large), await over(chaos, small)
        assert (later["state"], sooner["state"]) == ("completed", "completed") and sooner[
            "placed_at"
        ] < later["placed_at"]
        assert (await over(chaos, await submit(chaos, queue="nervous")))["state"] == "completed"
        assert (await over(chaos, await submit(chaos, queue="nervous", name="boom")))[
            "state"
        ] == "completed"
        note = (await queue(chaos, "nervous"))["note"]
        assert note == (
            "goes by the scheduler's default: it raised ZeroDivisionError: integer division "
            "or modulo by zero"
        )
        said = [
            event
            for event in (await chaos.get("/v1/events?limit=1000"))["events"]
            if event["kind"] in ("plugin.disabled", "term.began")
        ]
        assert [event["kind"] for event in said] == ["term.began", "plugin.disabled"]
        assert said[0]["fact"]["orders"] == {"smallest_first": "1.0", "touchy": "0.1"}
