"""A whole cluster: a directory goes to a gang's nodes with the job, and what it left there comes
back.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.cluster import Chaos, running
from tests.integration.test_cli_identity import Shell


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Chaos]:
    async with running(tmp_path, nodes=2, gpus=2) as found:
        yield found


def shell_of(cluster: Chaos, home: Path) -> Shell:
    shell = Shell(home, str(cluster.session._base_url))
    shell.profile = cluster.folder / "profile.json"
    return shell


async def test_each_node_of_a_gang_runs_in_a_copy_of_its_own(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    (project / "blob").write_bytes(os.urandom(3 << 20))
    (project / "main.sh").write_text("sha256sum blob; echo $RANK >> mine; cat mine; pwd")
    said = []
    for rank in ("0", "1"):
        out, _ = await shell.run(
            "run", "-N", "2", "--rank", rank, "--upload", "project", "--", "sh", "main.sh"
        )
        said.append(out.splitlines())
    sums, ranks, places = zip(*said, strict=True)
    assert sums[0] == sums[1] and ranks == ("0", "1") and len(set(places)) == 2
    assert all(place.endswith("/files") for place in places)
    jobs = (await cluster.get("/v1/jobs", all="true"))["jobs"]
    for rank, node_id in enumerate(jobs[-1]["node_ids"]):
        await shell.run("cp", "--node", node_id, f"{jobs[-1]['id']}:", f"back-{rank}")
        back = tmp_path / f"back-{rank}"
        assert (back / "blob").read_bytes() == (project / "blob").read_bytes() and (
            back / "mine"
        ).read_text() == f"{rank}\n"
