"""One tenant opens channels until it is refused; another tenant still finds a place."""

from base64 import b64encode
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import msgspec
import pytest

from libs.common import subjects
from libs.common.messages.channel_messages import ChannelAnswer
from services.api_gateway.http import channels
from tests.integration.gateway_world import FakeNode, World, gateway_world

EXEC = msgspec.json.encode({"type": "exec", "command": ["sh"], "stdin": True})
HEADER = {channels.HEADER.decode(): b64encode(EXEC).decode()}


async def opened(stack: AsyncExitStack, world: World, job_id: str) -> int:
    """Return the status of a channel that stays open until the stack is left."""
    url = f"{world.url}/v1/jobs/{job_id}/exec"
    try:
        await stack.enter_async_context(world.session.ws_connect(url, headers=HEADER))
    except aiohttp.WSServerHandshakeError as refused:
        return refused.status
    return 101


async def test_one_tenant_leaves_channels_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "CHANNELS_MAX", 5)

    async def agree(subject: str, data: bytes) -> bytes:
        return msgspec.msgpack.encode(ChannelAnswer())

    async with gateway_world(tmp_path) as world, AsyncExitStack() as stack:
        node = FakeNode()
        await world.writers.begin_term()
        for name in ("n1", "n2"):
            await node.listen(world.bus, name)
            await world.bus.subscribe(subjects.ask_node(name, "channel"), agree)
            await world.writers.register(name)
        for tenant in ("greedy", "quiet"):
            await world.ask("PUT", f"/v1/tenants/{tenant}", 201, json={})
        mallory = await stack.enter_async_context(world.as_("member", "mallory", "greedy"))
        ada = await stack.enter_async_context(world.as_("member", "ada", "quiet"))
        mallory.writers = ada.writers = world.writers
        theirs, own = await mallory.run_to("running"), await ada.run_to("running", "n2")
        for job_id in (theirs, own):
            for stream in ("stdout", "stderr"):
                node.say(job_id, stream, b"")
        found = [await opened(stack, mallory, theirs) for _ in range(6)]
        assert found == [101] * 4 + [429] * 2
        assert await opened(stack, ada, own) == 101
