"""The options of a job's container, in containers of a real engine (`make test-containers`):
the image's entry point, user and directory, mounts, scratch directories, caches and shared memory.

The tests are skipped without an engine (MUSTER_CONTAINER_ENGINE, or Docker's socket).
"""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from agent_world import World
from containers_world import (
    ENGINE,
    WHY_NOT,
    containers,
    ended,
    image,  # noqa: F401
    made_image,
    on_engine,
    removed_image,
)

from libs.common import facts as f
from libs.common.container_spec import ContainerSpec, Mount, Scratch
from services.node_agent.runtimes.allowed import Allowed, Root
from services.node_agent.runtimes.engine import Engine

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

ENTRY: Final = "muster-test-entry:1"
# A tenant's own Unix user, as an agent that is root gives it.
USERS: Final[dict[str, str]] = {}
AS_ROOT: Final = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")


@pytest.fixture(scope="module", autouse=True)
def entry(image: None) -> Iterator[None]:  # noqa: F811
    changes = ('ENTRYPOINT ["echo", "entry"]', 'CMD ["default"]', "USER 1234:1234", "WORKDIR /etc")
    made_image(ENTRY, changes)
    yield
    removed_image(ENTRY)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async for made in on_engine(tmp_path, {"*": "self"}):
        yield made


async def said(world: World, job: str, script: str = "", **wish: Any) -> str:
    """Return what a job prints, with its errors."""
    finished, stdout, stderr = await ended(world, job, script, **wish)
    assert finished.exit_code == 0, (finished, stderr)
    return stdout


async def refused(world: World, job: str, **wish: Any) -> str:
    finished, _, stderr = await ended(world, job, "true", container=ContainerSpec(**wish))
    assert finished.exit_code == 125, (finished, stderr)
    await world.said(f.JobReleased, job)
    assert await containers(world) == []
    return finished.detail


async def test_the_image_s_entry_point_user_and_directory_are_honoured(world: World) -> None:
    plain, shell = ContainerSpec(), ContainerSpec(entrypoint=("sh", "-c"))
    other = ContainerSpec(entrypoint=("sh", "-c"), user="77:78", workdir="/tmp")
    script = "id -u; id -g; pwd"
    assert await said(world, "a", image=ENTRY, command=(), container=plain) == "entry default\n"
    told = await said(world, "b", image=ENTRY, command=("x", "y"), container=plain)
    assert told == "entry x y\n"
    told = await said(world, "c", image=ENTRY, command=(script,), container=shell)
    assert told == "1234\n1234\n/etc\n"
    told = await said(world, "d", image=ENTRY, command=(script,), container=other)
    assert told == "77\n78\n/tmp\n"


async def test_jobs_of_before_replace_the_entry_point_and_the_user(world: World) -> None:
    told = await said(world, "j", image=ENTRY, command=("id", "-u"))
    rootless = (await Engine(ENGINE).abilities()).rootless
    assert told == f"{0 if rootless else os.geteuid()}\n"


async def test_the_start_names_the_digest_of_the_image(world: World) -> None:
    await said(world, "j", "true", container=ContainerSpec())
    assert (await world.said(f.JobStarted, "j")).image.startswith("sha256:")


async def test_shared_memory_scratch_and_caches_are_as_asked(world: World, tmp_path: Path) -> None:
    wish = ContainerSpec(
        shm_bytes=1 << 20,
        scratch=(Scratch("/disk"), Scratch("/ram", 1 << 20, True)),
        caches=("huggingface", "own"),
    )
    script = (
        "dd if=/dev/zero of=/dev/shm/x bs=65536 count=64 2>/dev/null; wc -c < /dev/shm/x;"
        "dd if=/dev/zero of=/ram/x bs=65536 count=64 2>/dev/null; wc -c < /ram/x;"
        "echo kept > /cache/own/file; echo $HF_HOME; touch /disk/x && ls /disk"
    )
    told = await said(world, "a", script, container=wish)
    assert told == "1048576\n1048576\n/cache/huggingface\nx\n"
    await world.said(f.JobReleased, "a")
    assert not (world.state_dir / "scratch" / "a.1").exists()
    script = "cat /cache/own/file; ls /disk"
    assert await said(world, "b", script, container=wish) == "kept\n"


@AS_ROOT
async def test_each_tenant_has_caches_of_its_own(tmp_path: Path) -> None:
    async for world in on_engine(tmp_path, USERS):
        wish = ContainerSpec(caches=("own",))
        await said(world, "a", "echo a > /cache/own/file", container=wish, tenant="team-a")
        told = await said(world, "b", "ls /cache/own; id -u", container=wish, tenant="team-b")
        assert "file" not in told
        assert (
            await said(world, "c", "cat /cache/own/file", container=wish, tenant="team-a") == "a\n"
        )


async def test_caches_over_the_bound_go_least_recently_used_first(world: World) -> None:
    world.agent.means.containers.folders.cache_bytes = 3 << 20
    fill = "dd if=/dev/zero of=/cache/{0}/x bs=1048576 count=2 2>/dev/null; ls /cache/{0}"
    for job, cache in (("a", "one"), ("b", "two"), ("c", "three")):
        script = fill.format(cache)
        assert await said(world, job, script, container=ContainerSpec(caches=(cache,))) == "x\n"
    told = await said(
        world,
        "d",
        "ls /cache/one /cache/two /cache/three",
        container=ContainerSpec(caches=("one", "two", "three")),
    )
    assert told == "/cache/one:\n\n/cache/three:\nx\n\n/cache/two:\n"


async def test_mounts_lie_below_the_directories_that_the_node_allows(
    world: World, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    (data / "sets").mkdir(parents=True)
    (data / "sets/one").write_text("first\n")
    for path in (data, data / "sets"):
        path.chmod(0o777)
    mount = Mount(str(data / "sets"), "/in")
    assert "lets jobs mount nothing (MUSTER_CONTAINER_MOUNTS)" in await refused(
        world, "a", mounts=(mount,)
    )
    world.agent.means.containers.allowed = Allowed((Root(str(data), False),))
    file = Mount(str(data / "sets/one"), "/file", True)
    script = "cat /in/one /file; echo new > /in/two; echo no > /file; echo $?"
    told = await said(world, "b", script, container=ContainerSpec(mounts=(mount, file)))
    assert told == "first\nfirst\n1\n"
    assert (data / "sets/two").read_text() == "new\n"
    assert await refused(world, "c", mounts=(Mount("/etc", "/in"),)) != ""
    mounts = world.state_dir.resolve() / "mounts"
    assert list(mounts.glob("*")) == []


@pytest.mark.attack
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("link", "is a symbolic link: name the place that it leads to"),
        ("inner/link/x", "is a symbolic link: name the place that it leads to"),
        ("socket", "is neither a file nor a directory"),
        ("nothing", "No such file or directory"),
        ("inner/file/x", "Not a directory"),
    ],
)
async def test_a_mount_never_leaves_its_directory(
    world: World, tmp_path: Path, source: str, expected: str
) -> None:
    data = tmp_path / "data"
    (data / "inner").mkdir(parents=True)
    (data / "link").symlink_to("/etc")
    (data / "inner/link").symlink_to("../..")
    (data / "inner/file").write_text("")
    os.mkfifo(data / "socket")
    world.agent.means.containers.allowed = Allowed((Root(str(data), False),))
    found = await refused(world, "a", mounts=(Mount(str(data / source), "/in"),))
    assert expected in found, found
    assert f"{data}/{source.removesuffix('/x')}" in found


@AS_ROOT
async def test_a_tenant_s_container_has_its_own_user_whatever_the_image_says(
    tmp_path: Path,
) -> None:
    async for world in on_engine(tmp_path, USERS):
        shell = ContainerSpec(entrypoint=("sh", "-c"))
        first = await said(world, "a", image=ENTRY, command=("id -u",), container=shell)
        assert int(first) >= 70_000
        for job, user in (("b", "0"), ("c", "root"), ("d", "1234:0")):
            assert "never root: leave --user out" in await refused(world, job, user=user)
        world.agent.means.containers.allowed = Allowed(users=((1_234, 1_234),))
        told = await said(world, "e", image=ENTRY, command=("id -u",), container=shell)
        assert told == "1234\n"
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        (closed / "secret").mkdir()
        world.agent.means.containers.allowed = Allowed((Root(str(closed), False),))
        found = await refused(world, "f", mounts=(Mount(str(closed / "secret"), "/in"),))
        assert "Permission denied" in found
