"""A whole cluster: models are pulled to nodes, used by jobs of their tenant, bounded, removed."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.chaos.cluster import Chaos, running
from tests.integration.hub_world import COMMIT, PATIENCE_S, REPOSITORY, Hub
from tests.integration.hub_world import hub as running_hub
from tests.integration.test_cli_identity import Shell
from tests.integration.test_files_cluster import shell_of

MIB = 1 << 20
PULLED = f"{{pulled:{REPOSITORY}}}"


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with running_hub() as made:
        made.holds("config.json", b'{"layers": 2}')
        made.holds("model.safetensors", os.urandom(3 * MIB), large=True)
        yield made


@asynccontextmanager
async def started_cluster(
    folder: Path, hub: Hub, nodes: int, **settings: str
) -> AsyncIterator[Chaos]:
    for above in (folder, *folder.parents[:-2]):
        above.chmod(above.stat().st_mode | 0o011)
    settings |= {
        "MUSTER_PULLED_BYTES": str(5 * MIB),
        "MUSTER_TENANT_UID_TABLE": str(folder / "uids" / "table.json"),
        "MUSTER_HUB": hub.url,
    }
    async with running(folder / "cluster", nodes=nodes, gpus=1, **settings) as found:
        yield found


@pytest.fixture
async def cluster(tmp_path: Path, hub: Hub) -> AsyncIterator[Chaos]:
    async with started_cluster(tmp_path, hub, nodes=2) as found:
        yield found


@pytest.fixture
async def open_cluster(tmp_path: Path, hub: Hub) -> AsyncIterator[Chaos]:
    """A node whose pulled models lie where all users can pass."""
    async with started_cluster(
        tmp_path, hub, nodes=1, MUSTER_PULLED_DIR=str(tmp_path / "models")
    ) as found:
        yield found


async def nodes_of(cluster: Chaos) -> list[str]:
    return [node["id"] for node in (await cluster.get("/v1/nodes"))["nodes"]]


async def pulled(shell: Shell, *words: str) -> dict[str, list[dict[str, Any]]]:
    out, _ = await shell.run("model", "pulled", *words, "-o", "json")
    return {node["node_id"]: node["copies"] for node in json.loads(out)}


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.05)


async def started(cluster: Chaos, name: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await cluster.named(name)
            if found and found[0]["started_at"]:
                return found[0]
            await asyncio.sleep(0.05)


def process_of(cluster: Chaos) -> int:
    """Return the process of the only pull that runs in this cluster."""
    own = f"{cluster.state}".encode()
    (found,) = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if own in (words := _words(path)) and b"/pull-" in words and b".pyz" in words
    ]
    return found


def _words(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_a_private_model_is_pulled_to_all_nodes_used_and_removed(
    cluster: Chaos, hub: Hub, tmp_path: Path
) -> None:
    shell, hub.token = shell_of(cluster, tmp_path), "hf_very-secret"
    first, second = await nodes_of(cluster)
    _, said = await shell.run("model", "pull", REPOSITORY, code=2)
    assert "there are 2 nodes to pull to" in said
    out, said = await shell.run("model", "pull", REPOSITORY, "--to-node", first, code=1)
    assert "no token was given" in out, said
    await shell.run("secret", "set", "hf", stdin=hub.token)
    out, said = await shell.run("model", "pull", REPOSITORY, "--all", "--secret", "hf")
    for node in (first, second):
        assert f"{node}: pulled {REPOSITORY}@{COMMIT}: 2 files, 3.0 MiB" in out
    assert hub.token not in out + said
    found = await pulled(shell)
    assert [copy["complete"] for node in (first, second) for copy in found[node]] == [True, True]
    out, _ = await shell.run("model", "pulled", first)
    assert f"{first}: 3.0 MiB of 5.0 MiB" in out and "complete" in out and second not in out
    await shell.run(
        *("submit", "--name", "uses", "--nodelist", first, "--env", f"DRAFT={PULLED}"),
        *(
            "-g",
            "0",
            "--cpus",
            "1",
            "--",
            "sh",
            "-c",
            "cat $0/config.json $DRAFT/config.json; sleep 60",
            PULLED,
        ),
    )
    await started(cluster, "uses")
    _, said = await shell.run("model", "unpull", REPOSITORY, "--node", first, code=1)
    assert "a job or a model uses it" in said
    assert (await pulled(shell, first))[first][0]["in_use"]
    out, _ = await shell.run("model", "unpull", REPOSITORY, "--node", second)
    assert f"{second}: removed {REPOSITORY}@{COMMIT}, 3.0 MiB" in out
    await shell.run("cancel", "uses")
    await shell.run("wait", "uses", code=143)
    logged, _ = await shell.run("logs", "uses")
    assert logged == '{"layers": 2}{"layers": 2}'
    out, _ = await shell.run("model", "unpull", REPOSITORY, "--all")
    assert out.startswith(f"{first}: removed")
    assert await pulled(shell) == {first: [], second: []}


async def test_a_job_whose_model_is_not_there_waits_and_says_why(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    await shell.run(
        "submit", "--name", "waits", "-g", "0", "--cpus", "1", "--", "cat", f"{PULLED}/config.json"
    )
    async with asyncio.timeout(PATIENCE_S):
        while "has no copy of" not in str(
            await cluster.history((await cluster.named("waits"))[0]["id"])
        ):
            await asyncio.sleep(0.1)
    _, said = await shell.run(
        "submit", "-g", "0", "--cpus", "1", "--", "cat", "{pulled:../../x}", code=1
    )
    assert "is not the name of a repository" in said
    await shell.run("model", "pull", REPOSITORY, "--all")
    await shell.run("wait", "waits")
    logged, _ = await shell.run("logs", "waits")
    assert logged == '{"layers": 2}'


async def test_a_pull_whose_process_is_killed_is_tried_again_and_continues(
    cluster: Chaos, hub: Hub, tmp_path: Path
) -> None:
    shell, (first, _) = shell_of(cluster, tmp_path), await nodes_of(cluster)
    data, halfway = hub.files["model.safetensors"], asyncio.Event()

    async def half(request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith("model.safetensors") or "Range" in request.headers:
            return None
        answer = web.StreamResponse(headers={"Content-Length": str(len(data))})
        await answer.prepare(request)
        await answer.write(data[: 2 * MIB])
        await halfway.wait()
        return answer

    hub.before = half
    out, _ = await shell.run("model", "pull", REPOSITORY, "--to-node", first, "--detach")
    job = out.strip()
    parts = f"pulled/copies/default/Team--Tiny-1B/{COMMIT}.parts"

    def came() -> int:
        return sum(path.stat().st_size for path in cluster.state.glob(f"**/{parts}/*"))

    await until(lambda: came() >= 2 * MIB)
    assert not (await pulled(shell, first))[first][0]["complete"]
    os.kill(process_of(cluster), signal.SIGKILL)
    halfway.set()
    await shell.run("wait", job)
    ranges = [each.headers.get("Range") for each in hub.seen if each.path.endswith("safetensors")]
    assert ranges == [None, f"bytes={2 * MIB}-"]
    assert (await pulled(shell, first))[first][0]["complete"]


async def test_a_model_comes_from_another_node_instead_of_the_hub(
    cluster: Chaos, hub: Hub, tmp_path: Path
) -> None:
    shell, (first, second) = shell_of(cluster, tmp_path), await nodes_of(cluster)
    await shell.run("model", "pull", REPOSITORY, "--to-node", first)
    asked = len(hub.seen)
    out, _ = await shell.run("model", "pull", REPOSITORY, "--from-node", first, "--to-node", second)
    assert "from another node: 2 files, 3.0 MiB" in out and len(hub.seen) == asked
    (copy,) = (await pulled(shell, second))[second]
    assert copy["complete"] and copy["revisions"] == ["main"]
    assert (Path(copy["path"]) / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    _, said = await shell.run(
        "model", "pull", "Team/Other", "--from-node", first, "--to-node", second, code=2
    )
    assert f"node {first} has no copy of Team/Other" in said
    same = ("--from-node", first, "--to-node", first)
    _, said = await shell.run("model", "pull", REPOSITORY, *same, code=2)
    assert f"node {first} is named by --from-node and by --to-node" in said
    hidden = ("--all", "--hub", "http://ann:password@hub")
    _, said = await shell.run("model", "pull", REPOSITORY, *hidden, code=2)
    assert "the hub's address 'hub' is not valid" in said
    _, said = await shell.run("model", "unpull", "Team/Other", "--all")
    assert "no node has a copy of Team/Other" in said


@pytest.mark.drill
async def test_a_wrong_copy_of_another_node_fails_once_and_is_not_waited_for_again(
    cluster: Chaos, hub: Hub, tmp_path: Path
) -> None:
    shell, (first, second) = shell_of(cluster, tmp_path), await nodes_of(cluster)
    await shell.run("model", "pull", REPOSITORY, "--to-node", first)
    (copy,) = (await pulled(shell, first))[first]
    (Path(copy["path"]) / "config.json").write_bytes(b'{"layers": 3}')
    out, _ = await shell.run(
        *("model", "pull", REPOSITORY, "--from-node", first, "--to-node", second), code=1
    )
    assert "does not have the recorded hash" in out
    assert not any(copy["complete"] for copy in (await pulled(shell, second))[second])


@pytest.mark.drill
async def test_an_interrupted_command_ends_and_its_pulls_go_on(
    cluster: Chaos, hub: Hub, tmp_path: Path
) -> None:
    shell, asked, goes_on = shell_of(cluster, tmp_path), asyncio.Event(), asyncio.Event()

    async def late(request: web.Request) -> None:
        asked.set()
        await goes_on.wait()

    hub.before = late
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from libs.cli.main import main; main()"),
        *("model", "pull", REPOSITORY, "--all"),
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.getcwd(),
            "MUSTER_PROFILE": str(shell.profile),
        },
    )
    async with asyncio.timeout(PATIENCE_S):
        await asked.wait()
        child.send_signal(signal.SIGINT)
        assert await child.wait() == 130
        goes_on.set()
        while [len(copies) for copies in (await pulled(shell)).values()] != [1, 1]:
            await asyncio.sleep(0.1)


async def test_the_bound_removes_what_was_used_last_longest_ago_and_nothing_in_use(
    cluster: Chaos, hub: Hub, tmp_path: Path
) -> None:
    shell, (first, _) = shell_of(cluster, tmp_path), await nodes_of(cluster)
    target = ("--to-node", first)
    await shell.run("model", "pull", "Team/A", *target)
    await shell.run("model", "pull", "Team/B", *target)
    assert [copy["repository"] for copy in (await pulled(shell))[first]] == ["Team/B"]
    await shell.run(
        *("submit", "--name", "uses", "--nodelist", first, "-g", "0", "--cpus", "1"),
        *("--", "sh", "-c", "sleep 60", "{pulled:Team/B}"),
    )
    await started(cluster, "uses")
    out, _ = await shell.run("model", "pull", "Team/A", *target, code=1)
    assert "(MUSTER_PULLED_BYTES); what running jobs and models use stays" in out
    assert [copy["repository"] for copy in (await pulled(shell))[first]] == ["Team/B"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give tenants users of their own")
async def test_a_node_that_a_tenant_s_user_cannot_pass_names_the_setting(
    cluster: Chaos, tmp_path: Path
) -> None:
    admin, (first, _) = shell_of(cluster, tmp_path), await nodes_of(cluster)
    red = await tenant_of(admin, tmp_path, "red")
    out, _ = await red.run("model", "pull", REPOSITORY, "--to-node", first, "--detach")
    async with asyncio.timeout(PATIENCE_S):
        while "set MUSTER_PULLED_DIR on this node" not in str(await cluster.history(out.strip())):
            await asyncio.sleep(0.1)


async def tenant_of(admin: Shell, folder: Path, tenant: str) -> Shell:
    """Return the shell of a member of a new tenant."""
    await admin.run("tenant", "set", tenant)
    out, _ = await admin.run("key", "create", "--tenant", tenant, "--user", "ann", "-o", "json")
    (folder / tenant).mkdir()
    shell = Shell(folder / tenant, admin.url)
    await shell.run("login", admin.url, stdin=f"{json.loads(out)['key']}\n")
    return shell


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give tenants users of their own")
async def test_a_tenant_s_models_are_open_to_its_jobs_and_to_no_other_tenant(
    open_cluster: Chaos, hub: Hub, tmp_path: Path
) -> None:
    (first,) = await nodes_of(open_cluster)
    admin = shell_of(open_cluster, tmp_path)
    red, blue = [await tenant_of(admin, tmp_path, name) for name in ("red", "blue")]
    await red.run("model", "pull", REPOSITORY, "--to-node", first)
    (copy,) = (await pulled(red, first))[first]
    weights = f"{copy['path']}/model.safetensors"
    on_node = ("run", "-g", "0", "--cpus", "1", "--nodelist", first, "--no-stdin", "--")
    out, _ = await red.run(*on_node, "sh", "-c", f"id -u; stat -c %u {PULLED}/model.safetensors")
    mine, owner = out.split()
    assert mine == owner != "0"
    assert (await pulled(blue, first))[first] == []
    _, said = await blue.run(*on_node, "cat", weights, code=1)
    assert "Permission denied" in said
    await blue.run("model", "unpull", REPOSITORY, "--node", first, code=1)
    assert (await pulled(red, first))[first][0]["path"] == copy["path"]
    _, said = await blue.run("model", "pulled", "--tenant", "red", code=1)
    assert "or your role may not read it" in said
    assert (await pulled(admin, first, "--tenant", "red"))[first][0]["path"] == copy["path"]
    await blue.run("model", "pull", REPOSITORY, "--to-node", first)
    assert (await pulled(blue, first))[first][0]["path"] != copy["path"]
