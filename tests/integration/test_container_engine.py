"""A container engine that hangs or answers nonsense delays neither heartbeats nor jobs' ends."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from agent_world import world_at

from libs.common import facts as f
from libs.common.errors import Refused, Unavailable
from services.node_agent.runtimes import containers as containers_of_agent
from services.node_agent.runtimes.container import LABEL
from services.node_agent.runtimes.containers import Containers
from services.node_agent.runtimes.engine import Engine, while_wanted
from services.node_agent.runtimes.images import Images, Wanted

HANGS = None


@asynccontextmanager
async def engine(
    tmp_path: Path, answer: Callable[[str], bytes | None]
) -> AsyncIterator[tuple[str, list[str]]]:
    """Serve a socket that answers each request line so, or never; yield the received lines."""
    heard: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heard.append(head.split(b"\r\n")[0].decode())
        said = answer(heard[-1])
        if said is HANGS:
            await reader.read()
        else:
            writer.write(
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
                % (len(said), said)
            )
            await writer.drain()
        writer.close()

    path = str(tmp_path / "engine.sock")
    server = await asyncio.start_unix_server(serve, path)
    try:
        yield path, heard
    finally:
        server.close()


async def test_a_pull_ends_when_its_job_is_not_wanted_any_more(tmp_path: Path) -> None:
    async with engine(tmp_path, lambda line: HANGS) as (path, _):
        with pytest.raises(Refused, match="stopped while its image was pulled"):
            async with asyncio.timeout(5):
                await while_wanted(Engine(path).pull("busybox:1"), lambda: False)


async def test_a_job_that_is_stopped_while_its_image_is_pulled_never_begins(tmp_path: Path) -> None:
    async with (
        engine(tmp_path, lambda line: HANGS) as (path, heard),
        world_at(tmp_path / "state", engine=path) as world,
    ):
        made = world.order("j", "touch began")
        await world.place(
            msgspec.structs.replace(
                made, spec=msgspec.structs.replace(made.spec, image="busybox:1")
            )
        )
        await world.until(lambda: any("/images/" in line for line in heard))
        await world.scheduler.send(world.stop_order("j"))
        assert (
            await world.said(f.JobRefused, "j")
        ).reason == "it was stopped while its image was pulled"
        assert not (world.state_dir / "began").exists()


async def test_an_image_that_is_here_is_not_pulled(tmp_path: Path) -> None:
    async def none() -> str:
        raise AssertionError("credentials are for a pull")

    async with engine(tmp_path, lambda line: b'{"Id": "sha256:1"}') as (path, heard):
        wanted = Wanted(
            name="busybox:1", key="j.1", tenant="t", credentials=none, is_wanted=lambda: True
        )
        found = await Images(tmp_path).ready(Engine(path), wanted)
    assert heard == ["GET /images/busybox:1/json HTTP/1.1"]
    assert found.digest == "sha256:1"


@pytest.mark.parametrize("said", [b"<html>", b'{"message": "no"}', b'[{"Id": 1}]'])
async def test_unreadable_container_list_counts_as_an_engine_that_does_not_answer(
    tmp_path: Path, said: bytes
) -> None:
    async with engine(tmp_path, lambda line: said) as (path, _):
        with pytest.raises(Unavailable, match="cannot be decoded"):
            await Engine(path).left(LABEL)


async def test_an_agent_begins_while_its_engine_hangs(tmp_path: Path) -> None:
    async with engine(tmp_path, lambda line: HANGS) as (path, heard):
        containers = Containers(tmp_path / "jobs", path)
        containers.adopt([])
        async with asyncio.timeout(5):
            while not heard:
                await asyncio.sleep(0.01)
            await containers.close()


async def test_orphans_are_removed_once_the_engine_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers_of_agent, "ORPHANS_AGAIN_S", 0.05)
    orphan = {"Id": "a" * 64, "Labels": {LABEL: f"{tmp_path}/jobs/old.1"}}
    said = [b"<html>", json.dumps([orphan]).encode(), b""]
    containers = Containers(tmp_path / "jobs", str(tmp_path / "engine.sock"))
    containers.adopt([])
    assert containers.removing is not None
    await asyncio.sleep(0.1)
    async with engine(tmp_path, lambda line: said.pop(0)) as (_, heard):
        async with asyncio.timeout(5):
            await containers.removing
    assert heard[-1].startswith(f"DELETE /containers/{'a' * 64}")


async def test_a_job_whose_environment_is_too_large_for_its_runner_says_so(tmp_path: Path) -> None:
    async with (
        engine(tmp_path, lambda line: b'{"Id": "sha256:1"}') as (path, _),
        world_at(tmp_path / "state", engine=path) as world,
    ):
        made = world.order("j", "true")
        large = {"A": "x" * (70 << 10), "B": "x" * (70 << 10)}
        spec = msgspec.structs.replace(made.spec, image="busybox:1", env=large)
        await world.place(msgspec.structs.replace(made, spec=spec))
        finished = await world.said(f.JobFinished, "j")
        assert finished.exit_code == 125
        assert "at most 131072 can be given" in finished.detail


async def test_only_containers_without_an_attempt_are_removed(tmp_path: Path) -> None:
    jobs = {"a" * 64: "old.1", "b" * 64: "kept.1", "c" * 64: "new.1"}
    listed: list[dict[str, object]] = [
        {"Id": name, "Labels": {LABEL: f"{tmp_path}/jobs/{key}"}} for name, key in jobs.items()
    ]
    listed += [
        {"Id": "d" * 64, "Labels": {LABEL: "/other/jobs/old.1"}},
        {"Id": "e" * 64, "Labels": None},
    ]
    async with engine(tmp_path, lambda line: json.dumps(listed).encode()) as (path, heard):
        containers = Containers(tmp_path / "jobs", path)
        containers.adopt(["kept.1"])
        containers.begun["new.1"] = None
        assert containers.removing is not None
        await containers.removing
    assert [line.split("?")[0] for line in heard if line.startswith("DELETE")] == [
        f"DELETE /containers/{'a' * 64}"
    ]
