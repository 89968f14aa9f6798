"""Images from a registry: credentials for one pull, digests, progress, and their bound on the disk
(`make test-containers`).

The tests are skipped without an engine (MUSTER_CONTAINER_ENGINE, or Docker's socket).
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_world import World
from containers_world import (
    ENGINE,
    WHY_NOT,
    ended,
    files,
    made_image,
    on_engine,
    order,
    removed_image,
)
from registry_world import Registry, registry

from libs.common import facts as f
from libs.common.container_spec import ContainerSpec
from libs.common.model import NodeId
from services.node_agent.jobs import beginning
from services.node_agent.runtimes.container import Image
from services.node_agent.runtimes.engine import Engine, credentials_of

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

PLAIN = ContainerSpec()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async for made in on_engine(tmp_path, {"*": "self"}):
        yield made


@pytest.fixture
async def store() -> AsyncIterator[Registry]:
    async with registry() as made:
        yield made
        for name in made.manifests:
            repo, _, reference = name.rpartition("/")
            mark = "@" if reference.startswith("sha256:") else ":"
            removed_image(made.named(f"{repo}{mark}{reference}"))


@pytest.fixture
def logins(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The passwords that the gateway gives to an agent, by tenant."""
    found: dict[str, str] = {}

    async def given(order: Any, node_id: NodeId, bus: Any) -> str:
        password = found.get(order.tenant, "")
        return credentials_of("", "ann", password) if password else ""

    monkeypatch.setattr(beginning, "registry_credentials", given)
    yield found


async def outcome(
    world: World, job: str, image: str, tenant: str = "default"
) -> tuple[int | None, str]:
    """Return a job's exit code, and what it printed or why it did not run."""
    finished, stdout, _ = await ended(
        world, job, "echo ran", image=image, tenant=tenant, container=PLAIN
    )
    return finished.exit_code, stdout or finished.detail


async def test_the_start_names_the_digest_of_the_registry(world: World, store: Registry) -> None:
    digest = store.add("team/x:1", files())
    assert await outcome(world, "a", store.named("team/x:1")) == (0, "ran\n")
    assert (await world.said(f.JobStarted, "a")).image == digest
    pinned = store.named(f"team/x@{digest}")
    assert await outcome(world, "b", pinned) == (0, "ran\n")
    assert (await world.said(f.JobStarted, "b")).image == digest


async def test_a_job_that_has_begun_keeps_the_image_when_its_tag_moves(
    world: World, store: Registry
) -> None:
    name, first = store.named("team/x:1"), store.add("team/x:1", files())
    assert await outcome(world, "a", name) == (0, "ran\n")
    second = store.add("team/x:1", files(10))
    removed_image(name)
    removed_image(store.named(f"team/x@{first}"))
    for job, pin, digest in (("b", first, first), ("c", "", second), ("d", first, first)):
        made = order(world, job, "echo ran", image=name, container=PLAIN)
        await world.place(msgspec.structs.replace(made, pin=pin))
        assert (await world.said(f.JobFinished, job)).exit_code == 0
        started = await world.said(f.JobStarted, job)
        assert (started.image, started.image_in_registry) == (digest, True)


async def test_a_pin_of_an_image_that_only_this_node_has_is_not_needed(world: World) -> None:
    made_image("muster-pin:1")
    try:
        made = order(world, "a", "echo ran", image="muster-pin:1", container=PLAIN)
        await world.place(msgspec.structs.replace(made, pin=f"sha256:{'a' * 64}"))
        assert (await world.said(f.JobFinished, "a")).exit_code == 0
        assert not (await world.said(f.JobStarted, "a")).image_in_registry
    finally:
        removed_image("muster-pin:1")


async def test_credentials_serve_one_pull_and_no_other_tenant(
    world: World, store: Registry, logins: dict[str, str]
) -> None:
    store.password, name = "pass-of-a", store.named("team/x:1")
    store.add("team/x:1", files())
    logins["team-a"] = "pass-of-a"
    assert (await outcome(world, "a", name, "team-b"))[0] == 125
    assert await outcome(world, "b", name, "team-a") == (0, "ran\n")
    code, why = await outcome(world, "c", name, "team-b")
    assert code == 125 and "cannot be pulled" in why
    del logins["team-a"]
    assert await outcome(world, "d", name, "team-a") == (0, "ran\n")
    kept = b"".join(path.read_bytes() for path in world.state_dir.rglob("*") if path.is_file())
    assert b"pass-of-a" not in kept
    store.password = ""
    assert await outcome(world, "e", name, "team-b") == (0, "ran\n")


async def test_an_image_of_another_tenant_stays_closed_to_the_next_agent(
    world: World, store: Registry, logins: dict[str, str]
) -> None:
    store.password, name = "secret", store.named("team/x:1")
    store.add("team/x:1", files())
    logins["team-a"] = "secret"
    assert (await outcome(world, "a", name, "team-a"))[0] == 0
    image = await Engine(ENGINE).image(name)
    assert isinstance(image, Image) and not image.is_local
    await world.end()
    await world.begin()
    assert (await outcome(world, "b", name, "team-b"))[0] == 125
    assert (await outcome(world, "c", image.id, "team-b"))[0] == 125
    assert (await outcome(world, "d", name, "team-a"))[0] == 0
    (world.state_dir / "images.json").write_text("torn")
    await world.end()
    await world.begin()
    assert (await outcome(world, "e", name, "team-b"))[0] == 125


async def test_the_least_recently_used_images_go_and_no_image_in_use(
    world: World, store: Registry
) -> None:
    names = [store.named(f"team/{name}:1") for name in ("one", "two", "three")]
    for number, name in enumerate(names):
        store.add(f"team/{('one', 'two', 'three')[number]}:1", files(), Labels={"n": name})
    images = world.agent.means.containers.images
    assert (await outcome(world, "a", names[0]))[0] == 0
    (size,) = [each.size_bytes for each in (images.pulled or {}).values()]
    images.bytes_max = 2 * size
    await world.place(order(world, "long", "sleep 600", image=names[0], container=PLAIN))
    await world.said(f.JobStarted, "long")
    for job, name in (("b", names[1]), ("c", names[2])):
        assert (await outcome(world, job, name))[0] == 0
    assert images.removing is not None
    await images.removing
    engine = Engine(ENGINE)
    there = [await engine.image(name) is not None for name in names]
    assert there == [True, False, True]
    assert [each.names for each in (images.pulled or {}).values()] == [[names[0]], [names[2]]]
    await world.scheduler.send(world.stop_order("long", grace_ms=0))
    await world.said(f.JobReleased, "long")


async def test_an_image_that_an_operator_tagged_stays(world: World, store: Registry) -> None:
    names = [store.named(f"team/{name}:1") for name in ("one", "two")]
    for number, name in enumerate(names):
        store.add(f"team/{('one', 'two')[number]}:1", files(), Labels={"n": name})
        assert (await outcome(world, f"j{number}", name))[0] == 0
    images, engine = world.agent.means.containers.images, Engine(ENGINE)
    await world.until(lambda: len(world.facts(f.JobReleased)) == len(names))
    async with engine._session() as session:
        tag = {"repo": "muster-test-mine", "tag": "1"}
        assert (await engine._ask(session, "POST", f"/images/{names[0]}/tag", **tag))[0] == 201
    images.bytes_max = 1
    assert (await outcome(world, "k", names[1]))[0] == 0
    assert images.removing is not None
    await images.removing
    there = [await engine.image(name) is not None for name in (names[0], "muster-test-mine:1")]
    removed_image("muster-test-mine:1")
    assert there == [False, True]


async def test_a_pull_tells_how_far_it_is(world: World, store: Registry) -> None:
    store.add("team/big:1", files(6 << 20))
    store.pause_s = 0.1
    await world.place(order(world, "j", "true", image=store.named("team/big:1"), container=PLAIN))
    seen: set[str] = set()
    images = world.agent.means.containers.images
    async with asyncio.timeout(30):
        while not world.facts(f.JobFinished):
            seen.add(images.progress("j.1"))
            await asyncio.sleep(0.02)
    assert any(" MiB, 0 of 1 layers" in each for each in seen), seen
    assert images.progress("j.1") == ""
