"""Devices by a CDI file, in containers of a real engine (`make test-containers`).

Needs an engine that takes devices by CDI (Docker 25 and newer with the feature `cdi`, Podman 5 and
newer) and a CDI folder of it that this user may write. The file names a simulated device.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
from agent_world import NODE, World
from containers_world import (
    ENGINE,
    WHY_NOT,
    ended,
    image,  # noqa: F401
    on_engine,
)

from libs.common import facts as f
from services.node_agent.runtimes.engine import Engine

DEVICE: Final = f"GPU-{NODE}-0"


def _folder() -> str:
    """Return a folder in which the test can write a CDI file for the engine; empty if none."""
    folders = asyncio.run(Engine(ENGINE).abilities()).cdi_folders
    for each in reversed(folders):
        try:
            os.makedirs(each, exist_ok=True)
        except OSError:
            continue
        if os.access(each, os.W_OK):
            return each
    return ""


FOLDER: Final = "" if WHY_NOT else _folder()

pytestmark = pytest.mark.skipif(
    not FOLDER, reason=WHY_NOT or f"the engine at {ENGINE} takes no devices by CDI"
)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    library = tmp_path / "library"
    library.write_text("from the device's driver")
    edits = {
        "env": [f"FOUND_DEVICE={DEVICE}"],
        "mounts": [
            {
                "hostPath": str(library),
                "containerPath": "/driver/library",
                "options": ["ro", "bind"],
            }
        ],
    }
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "example.com/simulated",
        "devices": [{"name": DEVICE, "containerEdits": edits}],
    }
    path = Path(FOLDER) / f"muster-test-{os.getpid()}.json"
    path.write_text(json.dumps(spec))
    yield path
    path.unlink()


def rename(file: Path, name: str) -> None:
    file.write_text(file.read_text().replace(f'"name": "{DEVICE}"', f'"name": "{name}"'))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async for made in on_engine(tmp_path, {"*": "self"}):
        yield made


async def test_a_container_gets_what_the_cdi_file_lists_for_its_device(
    world: World, file: Path
) -> None:
    finished, stdout, stderr = await ended(world, "j1", "echo $FOUND_DEVICE; cat /driver/library")
    assert finished.exit_code == 0, (finished, stderr)
    assert stdout == f"{DEVICE}\nfrom the device's driver"
    await world.said(f.JobReleased, "j1")


async def test_a_device_that_no_file_names_goes_without_cdi(world: World, file: Path) -> None:
    rename(file, "another")
    finished, stdout, stderr = await ended(world, "j1", "echo [$FOUND_DEVICE]")
    assert finished.exit_code == 0, (finished, stderr)
    assert stdout == "[]\n"
    await world.said(f.JobReleased, "j1")
