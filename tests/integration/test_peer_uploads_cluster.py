"""A whole cluster: a gang's upload comes from the node that has it, and not from a gateway."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common.transport.uploads import SMALL_BYTES
from tests.chaos.cluster import Chaos, running
from tests.integration.test_files_cluster import shell_of


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Chaos]:
    async with running(tmp_path, nodes=3, gpus=1) as found:
        yield found


def said_by_agents(cluster: Chaos) -> list[str]:
    """Return what the agents' logs say of uploads that came from other nodes."""
    logs = sorted((cluster.state / "logs").glob("node*"))
    lines = (line for log in logs for line in log.read_text().splitlines())
    return [line for line in lines if "upload" in line and "came from" in line]


async def test_a_gang_gets_its_upload_from_the_node_that_runs_a_job_with_it(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    (project / "data").write_bytes(os.urandom(SMALL_BYTES + (1 << 20)))
    script = "sha256sum < data; until [ -e done ]; do sleep 0.1; done"
    await shell.run(
        *("submit", "--name", "first", "--gpus", "1", "--upload", "project"),
        *("--", "sh", "-c", script),
    )
    while not (await cluster.named("first"))[0]["started_at"]:
        await asyncio.sleep(0.1)
    assert said_by_agents(cluster) == []
    await shell.run(
        *("run", "--name", "gang", "--nodes", "2", "--gpus", "1", "--upload", "project"),
        *("--", "sh", "-c", "sha256sum < data"),
    )
    (first,), (gang,) = await cluster.named("first"), await cluster.named("gang")
    assert gang["upload"] == first["upload"]
    (source,) = first["node_ids"]
    said = said_by_agents(cluster)
    assert len(said) == 2 and any(f"came from {source}" in line for line in said), said
