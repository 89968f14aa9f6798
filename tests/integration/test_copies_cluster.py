"""A whole cluster: a job's files travel from one agent to another, and not through the gateway."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.cluster import Chaos, running
from tests.integration.test_files_cluster import shell_of


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Chaos]:
    async with running(tmp_path, nodes=2, gpus=1) as found:
        yield found


async def test_a_folder_travels_from_node_to_node_into_a_running_job(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    project = tmp_path / "project"
    (project / "out").mkdir(parents=True)
    data = os.urandom(5 << 20)
    (project / "out/model").write_bytes(data)
    (project / "out/latest").symlink_to("model")
    await shell.run("run", "--name", "made", "--upload", "project", "--", "true")
    (made,) = await cluster.named("made")
    (source,) = made["node_ids"]
    target = next(
        node["id"] for node in (await cluster.get("/v1/nodes"))["nodes"] if node["id"] != source
    )
    (tmp_path / "empty").mkdir()
    wait = "until [ -e input/model ]; do sleep 0.1; done; sha256sum < input/latest"
    await shell.run(
        *("submit", "--name", "takes", "--nodelist", target, "--upload", "empty"),
        *("--", "sh", "-c", wait),
    )
    while not (await cluster.named("takes"))[0]["started_at"]:
        await asyncio.sleep(0.1)
    out, said = await shell.run("cp", "made:out", "--to-node", target, "takes:input")
    assert said == "" and out.startswith("copied 1 file, 5")
    assert "/s) over tcp, from " in out
    (takes,) = await cluster.named("takes")
    assert out.rstrip().endswith(f"from {source} to {target} as {takes['id']}:input")
    (link,) = (await cluster.get(f"/v1/nodes/{target}"))["links"]
    assert (link["node_id"], link["transport"]) == (source, "tcp") and "no RDMA" in link["why"]
    topo, _ = await shell.run("topo", target)
    assert f"{source}" in topo.partition("Links to other nodes:")[2]
    logged, _ = await shell.run("logs", "-f", "takes")
    assert logged.split()[0] == hashlib.sha256(data).hexdigest()
    _, said = await shell.run("cp", "made:out", "--to-node", target, "takes:input/model", code=1)
    assert f"cannot copy from {source} to {target}" in said and "exists already" in said
    _, said = await shell.run("cp", "made:gone", "--to-node", target, "takes:", code=1)
    assert "no such file: gone" in said
    _, said = await shell.run("cp", "made:out", "--to-node", source, "takes:", code=1)
    assert f"node {source} has no directory of job" in said
