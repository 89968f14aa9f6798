"""`--upload` against a real gateway: sent once, without ignored files, errors in one line."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from libs.common.transport.uploads import MemoryUploads
from tests.integration.gateway_world import KEY, World, gateway_world
from tests.integration.test_cli_identity import Shell


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("print('hi')")
    (project / "weights.bin").write_bytes(bytes(1 << 20))
    (project / ".musterignore").write_text("*.bin\n")
    return tmp_path


async def shell_of(world: World, home: Path) -> Shell:
    shell = Shell(home, world.url)
    await shell.run("login", world.url, stdin=KEY + "\n")
    return shell


def kept(world: World) -> dict[tuple[str, str], bytes]:
    assert isinstance(world.gateway.uploads, MemoryUploads)
    return world.gateway.uploads.archives


def spec_of(world: World, said: str) -> tuple[str, str]:
    spec = world.gateway.cluster.jobs[said.split()[0]].spec  # type: ignore[index]
    return spec.upload, spec.workdir


async def test_a_directory_is_uploaded_once_and_again_after_a_change(home: Path) -> None:
    async with gateway_world(home, records_access=True) as world:
        shell = await shell_of(world, home)
        first = spec_of(world, (await shell.run("submit", "--upload", "project", "--", "true"))[0])
        again = spec_of(
            world, (await shell.run("submit", "--upload", "./project/", "--", "true"))[0]
        )
        assert first == again == (next(iter(kept(world)))[1], "") and len(kept(world)) == 1
        (data,) = kept(world).values()
        assert b"train.py" in data and b"weights.bin" not in data and len(data) < 1 << 16
        await world.gateway.access.flush()
        entries = (await world.ask("GET", "/v1/access?route=/v1/uploads&limit=100"))["access"]
        assert [(each["method"], each["status"]) for each in entries] == [
            ("GET", 404),
            ("PUT", 201),
            ("GET", 200),
        ]
        (home / "project/train.py").write_text("print('other')")
        assert (
            spec_of(world, (await shell.run("submit", "--upload", "project", "--", "true"))[0])
            != first
        )
        assert len(kept(world)) == 2


async def test_an_upload_is_removed_by_its_directory_or_by_its_hash(home: Path) -> None:
    async with gateway_world(home) as world:
        await world.writers.begin_term()
        shell = await shell_of(world, home)
        for again in range(2):
            job, _ = await shell.run("submit", "--upload", "project", "--", "true")
            upload, _ = spec_of(world, job)
            named = upload if again else "project"
            _, said = await shell.run("upload", "rm", named, code=1)
            assert f"uses upload {upload}: cancel the job" in said
            await world.writers.queue(job.split()[0])
            await world.writers.close(job.split()[0], outcome="cancelled", exit_code=None)
            await world.settle()
            said, _ = await shell.run("upload", "rm", named)
            assert said.startswith(f"upload {upload} (") and kept(world) == {}
        _, said = await shell.run("upload", "rm", "none", code=2)
        assert "neither a directory nor a SHA-256" in said


async def test_a_job_file_may_name_an_upload_and_a_dry_run_sends_nothing(home: Path) -> None:
    async with gateway_world(home) as world:
        shell = await shell_of(world, home)
        (home / "job.yaml").write_text("command: python train.py\nupload: project\n")
        await shell.run("submit", "--dry-run", "job.yaml")
        assert kept(world) == {}
        upload, workdir = spec_of(world, (await shell.run("submit", "job.yaml"))[0])
        assert [("default", upload)] == list(kept(world)) and workdir == ""


async def test_a_failed_upload_is_one_line_and_submits_nothing(home: Path) -> None:
    async with gateway_world(home, upload_bytes=1 << 20) as world:
        shell = await shell_of(world, home)
        (home / "project/.musterignore").unlink()
        _, said = await shell.run("submit", "--upload", "project", "--", "true", code=1)
        assert "the request body is larger than 1048576 bytes" in said
        _, said = await shell.run(
            "submit", "--upload", "project", "--", "true", code=2, MUSTER_UPLOAD_BYTES=str(1 << 20)
        )
        assert "it exceeds 1 MiB at weights.bin" in said and ".musterignore" in said
        _, said = await shell.run("submit", "--upload", "nowhere", "--", "true", code=2)
        assert "cannot read nowhere" in said
        _, said = await shell.run(
            "run", "--upload", "project", "--workdir", "/tmp", "--", "true", code=2
        )
        assert "remove --workdir" in said
        assert kept(world) == {} and world.gateway.cluster.jobs == {}


async def test_a_model_can_have_an_upload_and_placement_flags(home: Path) -> None:
    async with gateway_world(home) as world:
        shell = await shell_of(world, home)
        where = (
            "--gpu-model",
            "H100|H200",
            "--node-label",
            "disk=ssd",
            "--cpus",
            "2",
            "--numa",
            "required",
            "--no-cross-numa",
        )
        await shell.run("deploy", "chat", "--upload", "project", *where, "--", "./serve", "{port}")
        spec = world.gateway.cluster.models["chat"].spec
        assert [("default", spec.upload)] == list(kept(world)) and spec.workdir == ""
        assert (spec.model, spec.node_labels, spec.cpus_milli) == (
            ("H100", "H200"),
            {"disk": "ssd"},
            2_000,
        )
        assert (spec.numa, spec.allow_cross_numa) == ("required", False)
        (home / "project/train.py").write_text("print('other')")
        await shell.run("redeploy", "chat", "--upload", "project")
        assert world.gateway.cluster.models["chat"].spec == replace(
            spec, upload=list(kept(world))[1][1]
        )
