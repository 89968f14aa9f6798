"""The bound of a tenant's caches, and starts of one tenant at the same time.

The engine is a small server of the test.
"""

import asyncio
from pathlib import Path

import msgspec
from fake_engine import FakeEngine, fake_engine

from libs.common.container_spec import ContainerSpec
from libs.common.messages import StartOrder
from libs.common.model import JobSpec
from services.node_agent.runtimes.containers import Containers
from services.node_agent.runtimes.own_folders import OPEN, OwnFolders
from tests.integration.peer_uploads_world import start_order

KIB = 1 << 10


def order(*caches: str) -> StartOrder:
    spec = JobSpec(command=("true",), container=ContainerSpec(caches=caches))
    return msgspec.structs.replace(start_order("j"), spec=spec)


def filled(folders: OwnFolders, *names: str) -> list[Path]:
    """Fill caches of the tenant red, one after another."""
    found = []
    for name in names:
        lent = folders.lend(f"old-{name}", "red", ContainerSpec(caches=(name,)), {}, [])
        found.append(Path(lent.caches[0]))
        (found[-1] / "data").write_bytes(bytes(64 * KIB))
    return found


async def lent(containers: Containers, engine: FakeEngine, key: str, *caches: str) -> list[str]:
    return (await containers._lend(engine.client, key, order(*caches), {})).caches


async def test_two_starts_of_a_tenant_keep_each_other_s_caches(tmp_path: Path) -> None:
    async with fake_engine(tmp_path) as engine:
        containers = Containers(tmp_path / "jobs", str(engine.path), cache_bytes=KIB)
        (one,) = filled(containers.folders, "one")
        others: list[asyncio.Task[None]] = []

        async def start_another() -> None:
            await lent(containers, engine, "b", "one")
            (one / "mine").write_bytes(b"x")

        async def once() -> None:
            if not others:
                others.append(asyncio.create_task(start_another()))
                await asyncio.wait(others, timeout=0.3)

        engine.before["GET /containers/json"] = once
        await lent(containers, engine, "a", "two")
        await asyncio.gather(*others)
        assert (one / "mine").exists()


async def test_the_caches_of_the_starting_job_are_removed_last(tmp_path: Path) -> None:
    for used, left in (((), [True, False, True]), (("two", "three"), [False, True, True])):
        folders = OwnFolders(tmp_path / str(len(used)))
        folders.state_dir.mkdir()
        made = filled(folders, "one", "two", "three")
        folders.cache_bytes = 150 * KIB
        used_paths = [str(each) for each in made if each.name in used]
        folders.lend("new", "red", ContainerSpec(caches=("one",)), {}, used_paths)
        assert [(each / "data").exists() for each in made] == left


async def test_a_cache_that_an_agent_left_closed_is_opened(tmp_path: Path) -> None:
    folders = OwnFolders(tmp_path)
    (one,) = filled(folders, "one")
    one.chmod(0o700)
    folders.lend("new", "red", ContainerSpec(caches=("one",)), {}, [])
    assert one.stat().st_mode & 0o7777 == OPEN
