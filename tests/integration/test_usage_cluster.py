"""A whole cluster: a model under its served name, shared, used by two tenants, and billed."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import aiohttp

from tests.chaos.cluster import Chaos, running
from tests.tidy import ROOT

SERVER = ROOT / "examples" / "model_server.py"
QWEN = "Qwen/Qwen2.5-7B"
READY_S = 60.0
SOON_S = 30.0


async def ask(chaos: Chaos, method: str, path: str, status: int, body: object = None) -> Any:
    got, answer = await chaos.try_once(method, path, json=body)
    assert got == status, answer
    return answer


async def ready(chaos: Chaos) -> None:
    async with asyncio.timeout(READY_S):
        while (await chaos.get("/v1/deployments/qwen"))["state"] != "ready":
            await asyncio.sleep(0.1)


async def test_what_two_tenants_used_of_a_model_adds_up_to_its_charge(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=1, gpus=1) as chaos:
        command = [sys.executable, str(SERVER), "--port", "{port}", "--model", QWEN]
        body = {"name": "qwen", "served_name": QWEN, "command": command, "gpus": 1}
        await ask(chaos, "POST", "/v1/deployments", 201, body)
        await ask(chaos, "PUT", "/v1/tenants/biology", 201, {})
        await ask(chaos, "PATCH", "/v1/deployments/qwen/aliases", 200, {"add": ["gpt-4o"]})
        await ask(chaos, "PATCH", "/v1/deployments/qwen/guests", 200, {"add": ["biology"]})
        key = {"user": "eve", "tenant": "biology"}
        made = await ask(chaos, "POST", "/v1/keys", 201, key)
        await ready(chaos)
        for name in ("qwen", "gpt-4o", QWEN):
            chat = {"model": name, "messages": [{"role": "user", "content": "one two three"}]}
            await ask(chaos, "POST", "/v1/chat/completions", 200, chat)
        headers = {"authorization": f"Bearer {made['key']}"}
        async with aiohttp.ClientSession(headers=headers) as eve:
            for path in ("/v1/chat/completions", "/v1/chat/completions"):
                async with eve.post(chaos.urls[0] + path, json=chat) as response:
                    assert response.status == 200, await response.text()
        await ask(chaos, "DELETE", "/v1/deployments/qwen", 202)
        async with asyncio.timeout(SOON_S):
            while True:
                found = await chaos.get("/v1/usage")
                rows = found["usage"]
                if found["charged_share_ms"] and sum(row["requests"] for row in rows) >= 5:
                    break
                await asyncio.sleep(0.2)
        assert {(row["payer"], row["model"]) for row in rows} == {("default", "qwen")}
        requests = {row["tenant"]: row for row in rows if row["kind"] == "requests"}
        assert (requests["default"]["requests"], requests["biology"]["requests"]) == (3, 2)
        assert all(row["output_tokens"] > 0 < row["share_ms"] for row in requests.values())
        assert sum(row["share_ms"] for row in rows) == found["charged_share_ms"]["default"]
        assert [row["kind"] for row in rows].count("idle") == 1
