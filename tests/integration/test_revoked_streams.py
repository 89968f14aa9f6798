"""A revoked key ends the connections that it opened: followed streams and channels break off within
MUSTER_KEEPALIVE_MS.
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from libs.common import subjects
from libs.common.messages.channel_messages import ChannelAnswer
from services.api_gateway.http.channels import HEADER
from tests.integration.gateway_world import FakeNode, World, gateway_world

STREAMS = (
    "/v1/jobs/{job}/output?follow=1",
    "/v1/jobs/{job}/attach",
    "/v1/events?follow=1",
    "/v1/watch",
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path, keepalive_ms=50) as made:
        await made.writers.begin_term()
        await made.writers.register("n1")
        yield made


async def revoke(world: World, user: str) -> None:
    listed = (await world.ask("GET", "/v1/keys"))["keys"]
    key_id = next(each["id"] for each in listed if each["user"] == user)
    await world.ask("DELETE", f"/v1/keys/{key_id}", 204)


@pytest.fixture
async def node(world: World) -> FakeNode:
    async def agree(subject: str, data: bytes) -> bytes:
        return msgspec.msgpack.encode(ChannelAnswer())

    found = FakeNode()
    await found.listen(world.bus, "n1")
    await world.bus.subscribe(subjects.ask_node("n1", "channel"), agree)
    return found


@pytest.mark.parametrize("path", STREAMS)
async def test_a_followed_stream_breaks_off_with_its_key(
    world: World, node: FakeNode, path: str
) -> None:
    async with world.as_("member", "ada") as ada, world.as_("member", "bob"):
        ada.writers = world.writers
        job_id = await ada.run_to("running")
        node.say(job_id, "stdout", b"begin")
        address = world.url + path.format(job=job_id)
        async with ada.session.get(address) as stolen:
            assert stolen.status == 200 and await stolen.content.readany()
            await revoke(world, "ada")
            await asyncio.sleep(0.1)
            node.say(job_id, "stdout", b"secret")
            with pytest.raises(aiohttp.ClientPayloadError):
                assert b"secret" not in await stolen.content.read()
        async with world.session.get(address) as kept:
            await revoke(world, "bob")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(kept.content.read(), 0.3)


@pytest.mark.parametrize(
    ("route", "wish"),
    [
        ("exec", {"type": "exec", "command": ["sh"], "stdin": True}),
        ("forward", {"type": "forward", "port": 80}),
    ],
)
async def test_a_channel_ends_with_its_key(
    world: World, node: FakeNode, route: str, wish: dict[str, object]
) -> None:
    async with world.as_("member", "ada") as ada:
        ada.writers = world.writers
        job_id = await ada.run_to("running")
        node.say(job_id, "stdout", b"$ ")
        node.say(job_id, "stderr", b"")
        header = {HEADER.decode(): b64encode(msgspec.json.encode(wish)).decode()}
        url = f"{world.url}/v1/jobs/{job_id}/{route}"
        async with ada.session.ws_connect(url, headers=header) as shell:
            assert (await shell.receive_bytes()).endswith(b"$ ")
            await revoke(world, "ada")
            last = [message.data async for message in shell]
        assert "sign in again" in last[-1]
