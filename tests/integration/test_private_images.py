"""Images of tenants with credentials stay closed to others, and removals disturb no start.

The engine is a small server of the test.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_engine import SIZE, FakeEngine, fake_engine, stopped_at

from libs.common.errors import Refused, Unavailable
from services.node_agent.runtimes import engine as e
from services.node_agent.runtimes.container import Image
from services.node_agent.runtimes.faults import NoImage
from services.node_agent.runtimes.images import FILE, Images, Wanted
from services.node_agent.runtimes.private_pulls import FILE as PRIVATE
from services.node_agent.runtimes.private_pulls import REPOSITORIES_MAX

WITHIN_S = 5.0
TEAM = "reg.example/team/x:1"


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    async with fake_engine(tmp_path) as made:
        made.add(TEAM)
        made.private.add(TEAM)
        yield made


def wanted(
    name: str, tenant: str, login: str = "", key: str = "", stop: asyncio.Event | None = None
) -> Wanted:
    async def credentials() -> str:
        return login

    return Wanted(
        name=name,
        key=key or f"{name}.{tenant}",
        tenant=tenant,
        credentials=credentials,
        is_wanted=lambda: stop is None or not stop.is_set(),
    )


async def ready(images: Images, engine: FakeEngine, wish: Wanted) -> Image:
    async with asyncio.timeout(WITHIN_S):
        return await images.ready(engine.client, wish)


async def cut_short(images: Images, engine: FakeEngine) -> None:
    """Stop the job of team-a when its image is in the engine and not noted."""
    came = asyncio.Event()
    engine.after["POST /images/create"] = stopped_at(came)
    with pytest.raises(Refused, match="stopped while its image was pulled"):
        await ready(images, engine, wanted(TEAM, "team-a", "login", stop=came))
    engine.after.clear()
    assert engine.found(TEAM) is not None


async def test_an_image_whose_private_pull_was_not_noted_is_closed_to_other_tenants(
    tmp_path: Path, engine: FakeEngine
) -> None:
    images = Images(tmp_path)
    await cut_short(images, engine)
    for each in (images, Images(tmp_path)):  # this agent, and the next one
        for name in (TEAM, engine.registry[TEAM], "reg.example/team/x@sha256:1"):
            with pytest.raises(NoImage):
                await ready(each, engine, wanted(name, "team-b"))
    assert await ready(images, engine, wanted(TEAM, "team-a", "login"))
    with pytest.raises(NoImage):
        await ready(images, engine, wanted(TEAM, "team-b"))


async def test_an_image_that_the_engine_does_not_show_after_its_pull_is_closed(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(e, "ASK_S", 0.2)
    images, shown = Images(tmp_path), asyncio.Event()

    async def hides_it() -> None:
        engine.before[f"GET /images/{TEAM}"] = stopped_at(shown)

    engine.after["POST /images/create"] = hides_it
    with pytest.raises(Unavailable):
        await ready(images, engine, wanted(TEAM, "team-a", "login"))
    engine.before.clear()
    with pytest.raises(NoImage):
        await ready(images, engine, wanted(TEAM, "team-b"))


async def test_a_private_pull_is_stored_before_it_begins_and_until_its_image_is_noted(
    tmp_path: Path, engine: FakeEngine
) -> None:
    stored: list[object] = []

    async def look() -> None:
        stored.append(json.loads((tmp_path / PRIVATE).read_bytes()))
        assert not (tmp_path / FILE).exists()

    engine.before["POST /images/create"] = look
    found = await ready(Images(tmp_path), engine, wanted(TEAM, "team-a", "login"))
    assert stored == [["reg.example/team/x"]]
    assert json.loads((tmp_path / PRIVATE).read_bytes()) == []
    assert json.loads((tmp_path / FILE).read_bytes())[found.id]["tenants"] == ["team-a"]


async def test_a_refused_private_pull_hides_nothing(tmp_path: Path, engine: FakeEngine) -> None:
    images = Images(tmp_path)
    with pytest.raises(NoImage):
        await ready(images, engine, wanted("reg.example/team/none:1", "team-a", "login"))
    assert json.loads((tmp_path / PRIVATE).read_bytes()) == []


async def test_a_slow_private_pull_keeps_no_start_from_an_image_of_another_repository(
    tmp_path: Path, engine: FakeEngine
) -> None:
    images, slow = Images(tmp_path), asyncio.Event()
    here = engine.add("reg.example/other:1")
    await engine.client.pull("reg.example/other:1")
    engine.before["POST /images/create"] = stopped_at(slow)
    pulling = asyncio.ensure_future(
        ready(images, engine, wanted("slow.example/x:1", "team-a", "login"))
    )
    await asyncio.wait_for(slow.wait(), WITHIN_S)
    began_s = asyncio.get_running_loop().time()
    assert (await ready(images, engine, wanted("reg.example/other:1", "team-b"))).id == here
    assert not pulling.done() and asyncio.get_running_loop().time() - began_s < WITHIN_S / 2
    pulling.cancel()


async def test_after_a_list_was_lost_every_agent_pulls_what_it_does_not_know(
    tmp_path: Path, engine: FakeEngine
) -> None:
    await ready(Images(tmp_path), engine, wanted(TEAM, "team-a", "login"))
    (tmp_path / FILE).write_text("torn")
    engine.add("other:1")
    await ready(Images(tmp_path), engine, wanted("other:1", "team-b"))
    with pytest.raises(NoImage):
        await ready(Images(tmp_path), engine, wanted(TEAM, "team-b"))


async def test_too_many_private_pulls_hide_all_images(tmp_path: Path, engine: FakeEngine) -> None:
    await engine.client.pull(TEAM, "login")
    images = Images(tmp_path)
    many = [f"reg.example/{number}" for number in range(REPOSITORIES_MAX)]
    (tmp_path / PRIVATE).write_text(json.dumps(many))
    assert await ready(images, engine, wanted(TEAM, "team-b"))
    await images.private.begin("reg.example/more")
    with pytest.raises(NoImage):
        await ready(images, engine, wanted(TEAM, "team-b"))


async def test_an_image_is_local_if_no_registry_has_it(engine: FakeEngine) -> None:
    """Newer stores of Docker use the digest of the registry as the id."""
    await engine.client.pull(TEAM, "login")
    pulled = await engine.client.image(TEAM)
    assert pulled is not None and not pulled.is_local
    engine.images[pulled.id].digests = []
    made = await engine.client.image(TEAM)
    assert made is not None and made.is_local and made.digest == made.id


@pytest.fixture
async def full(tmp_path: Path, engine: FakeEngine) -> Images:
    """The images a:1, b:1 and c:1, pulled in this order; none is in use, all are too many."""
    images = Images(tmp_path)
    for name in ("a:1", "b:1", "c:1"):
        engine.add(name)
        await ready(images, engine, wanted(name, "t", key=name))
        images.let_go(name)
    assert images.removing is not None
    await images.removing
    images.bytes_max = SIZE
    return images


async def test_an_image_that_a_start_takes_while_others_are_removed_stays(
    full: Images, engine: FakeEngine
) -> None:
    leaving, go = asyncio.Event(), asyncio.Event()

    async def slowly() -> None:
        leaving.set()
        await go.wait()

    engine.before["DELETE /images/a:1"] = slowly
    await ready(full, engine, wanted("c:1", "t"))
    await asyncio.wait_for(leaving.wait(), WITHIN_S)
    await ready(full, engine, wanted("b:1", "t"))  # does not wait for the removal of a:1
    go.set()
    assert full.removing is not None
    await full.removing
    assert [bool(engine.found(name)) for name in ("a:1", "b:1", "c:1")] == [False, True, True]


async def test_an_image_that_is_removed_while_a_start_needs_it_is_pulled_again(
    full: Images, engine: FakeEngine
) -> None:
    leaving, go = asyncio.Event(), asyncio.Event()

    async def slowly() -> None:
        leaving.set()
        await go.wait()

    engine.before["DELETE /images/a:1"] = slowly
    await ready(full, engine, wanted("c:1", "t"))
    await asyncio.wait_for(leaving.wait(), WITHIN_S)
    starting = asyncio.ensure_future(ready(full, engine, wanted("a:1", "t")))
    while engine.heard[-1] != "GET /images/a:1/json":
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert not starting.done()
    go.set()
    await starting
    assert engine.found("a:1") is not None


async def test_an_image_that_an_operator_named_stays(full: Images, engine: FakeEngine) -> None:
    named = engine.registry["a:1"]
    engine.images[named].tags.append("mine:1")
    await ready(full, engine, wanted("c:1", "t"))
    assert full.removing is not None
    await full.removing
    assert engine.images[named].tags == ["mine:1"]
    assert engine.found("b:1") is None
