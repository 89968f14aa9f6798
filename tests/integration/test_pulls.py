"""How far the nodes of a job are with its image, as the gateway and `muster describe` show it."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from libs.common.messages.pull_messages import PullReport
from libs.common.subjects import ask_node
from tests.integration.gateway_world import KEY, World, gateway_world
from tests.integration.test_cli_identity import Shell

WORDS = "12 of 400 MiB, 1 of 5 layers"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path, ask_ms=500) as made:
        await made.writers.begin_term()
        await made.writers.register("n1")
        yield made


async def answers(world: World, progress: dict[str, str]) -> None:
    async def answer(subject: str, data: bytes) -> bytes:
        return msgspec.msgpack.encode(PullReport(progress))

    await world.bus.subscribe(ask_node("n1", "pulls"), answer)


async def test_describe_shows_the_image_and_the_pull_of_a_job_that_has_not_started(
    world: World, tmp_path: Path
) -> None:
    shell = Shell(tmp_path, world.url)
    await shell.run("login", world.url, stdin=KEY + "\n")
    job = await world.run_to("placed", image="team/x:1")
    await answers(world, {f"{job}.1": WORDS, "other.1": "secret of another tenant"})
    out, _ = await shell.run("describe", job)
    assert "Image:      team/x:1\n" in out and f"Pull:       n1: {WORDS}\n" in out
    await world.writers.start(job, "n1")
    await world.settle()
    out, _ = await shell.run("describe", job)
    assert "Image:      team/x:1\n" in out and "Pull:" not in out


async def test_a_node_without_a_pull_is_not_named_and_a_silent_one_is(world: World) -> None:
    job = await world.run_to("placed", image="team/x:1")
    (silent,) = (await world.ask("GET", f"/v1/jobs/{job}/pulls"))["pulls"]
    assert silent["node_id"] == "n1" and "ask.node.n1.pulls" in silent["progress"]
    await answers(world, {})
    whole = await world.ask("GET", f"/v1/jobs/{job}/pulls")
    assert (whole["pulls"], whole["next"]) == ([], None)


async def test_a_job_without_an_image_asks_no_node(world: World) -> None:
    job = await world.run_to("placed")
    assert (await world.ask("GET", f"/v1/jobs/{job}/pulls"))["pulls"] == []
