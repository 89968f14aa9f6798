"""Replicas with a key of their own: gateways and probes have it, and nothing else."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from nacl.public import PrivateKey, SealedBox

from libs.common import subjects
from libs.common.messages.secret_messages import REPLICA_KEY, SecretAnswer, SecretAsk
from libs.common.model import JobId
from libs.embedded.identity import vault_key_file
from tests.chaos.cluster import Chaos, running
from tests.integration import openai_replica
from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_world import CHAT, MESSAGES, add_replicas
from tests.integration.test_secrets import archived

WAIT_S = 60.0
KEYED = {"VLLM_API_KEY": "{key}"}
# Demands its key for everything, notes what it denied, and says its process id, whose environment
# the test reads.
SERVER = """
import http.server, json, os, sys

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.headers.get("authorization") == "Bearer " + os.environ["API_KEY"]:
            message = {"role": "assistant", "content": str(os.getpid())}
            self.reply(200, {"choices": [{"index": 0, "message": message}]})
        else:
            with open(os.environ["DENIED"], "a") as denied:
                denied.write(self.path + "\\n")
            self.reply(401, {"error": {"message": "no key"}})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def reply(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Answers).serve_forever()
"""


async def deployed(world: World, name: str, **fields: Any) -> None:
    body = {"name": name, "command": ["serve", "{port}"], **fields}
    await world.ask("POST", "/v1/deployments", 201, json=body)


async def asked(
    world: World, node_id: str, job_id: str, replica_key: bool = False
) -> dict[str, str] | str:
    """As an agent asks: the values, or why not."""
    private = PrivateKey.generate()
    ask = SecretAsk(JobId(job_id), 1, bytes(private.public_key), replica_key=replica_key)
    sent = msgspec.msgpack.encode(ask)
    answer = msgspec.msgpack.decode(
        await world.bus.request(subjects.ask_secrets(node_id), sent, 10), type=SecretAnswer
    )
    return answer.refused or msgspec.msgpack.decode(
        SealedBox(private).decrypt(answer.sealed), type=dict[str, str]
    )


async def test_each_replica_gets_its_own_key_also_when_a_request_goes_to_a_second_one(
    tmp_path: Path,
) -> None:
    async with (
        gateway_world(tmp_path, vault_key_file=str(vault_key_file(tmp_path))) as world,
        openai_replica.running() as first,
        openai_replica.running() as second,
        openai_replica.running() as plain,
    ):
        await deployed(world, "chat", env=KEYED)
        await deployed(world, "open")
        await add_replicas(world, "chat", first, second)
        await add_replicas(world, "open", plain)
        body = {"model": "chat", "messages": MESSAGES, "x_status": 503}
        await world.ask("POST", CHAT, 503, json=body)
        await world.ask("POST", CHAT, json={"model": "open", "messages": MESSAGES})
        keys = [world.gateway.vault.replica_key(JobId(f"chat-{number}"), 1) for number in (1, 2)]
        heard = [replica.headers[0].get("authorization") for replica in (first, second, plain)]
        assert heard == [f"Bearer {keys[0]}", f"Bearer {keys[1]}", None]
        said = repr(await world.said())
        assert "{key}" in said and not any(key in said for key in keys)


async def test_only_the_node_of_a_replica_is_given_its_key(tmp_path: Path) -> None:
    async with (
        gateway_world(tmp_path, vault_key_file=str(vault_key_file(tmp_path))) as world,
        openai_replica.running() as replica,
    ):
        await world.ask("PUT", "/v1/secrets/hf-token", 201, json={"value": "planted"})
        await deployed(world, "chat", env=KEYED, secrets={"HF_TOKEN": "hf-token"})
        await deployed(world, "open")
        await add_replicas(world, "chat", replica)
        await add_replicas(world, "open", replica)
        key = world.gateway.vault.replica_key(JobId("chat-1"), 1)
        assert await asked(world, "n1", "chat-1") == {"HF_TOKEN": "planted", REPLICA_KEY: key}
        assert await asked(world, "n1", "chat-1", replica_key=True) == {REPLICA_KEY: key}
        assert await asked(world, "n1", "open-1", replica_key=True) == {}
        assert "is not on node n2" in await asked(world, "n2", "chat-1", replica_key=True)


async def test_a_gateway_without_the_key_file_sends_nothing_to_a_replica_with_a_key(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world, openai_replica.running() as replica:
        await deployed(world, "chat", env=KEYED)
        await add_replicas(world, "chat", replica)
        await world.ask("POST", CHAT, 502, json={"model": "chat", "messages": MESSAGES})
        assert replica.bodies == []
        assert "MUSTER_VAULT_KEY_FILE" in await asked(world, "n1", "chat-1")


async def test_a_server_that_demands_its_key_answers_through_the_gateways_only(
    tmp_path: Path,
) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    denied = tmp_path / "denied"
    denied.write_text("")
    async with running(tmp_path, nodes=1, gpus=2, gateways=2) as cluster:
        body = {
            "name": "chat",
            "command": [sys.executable, str(tmp_path / "server.py"), "{host}", "{port}"],
            "env": {"API_KEY": "{key}", "DENIED": str(denied)},
            "fraction": 0.25,
        }
        status, made = await cluster.try_once("POST", "/v1/deployments", json=body)
        assert status == 201, made
        replica = await until_ready(cluster)
        said = [await content(cluster, url + CHAT) for url in cluster.urls]
        assert said[0] == said[1]
        own = environment_of(int(said[0]))
        assert own["API_KEY"] == own["MUSTER_REPLICA_KEY"] and len(own["API_KEY"]) == 64
        assert own["MUSTER_HOST"] == replica["address"]
        assert denied.read_text() == ""
        # Directly, without a key, with one of the cluster's, and on another address.
        assert await direct(replica, {}) == 401
        assert (
            await direct(replica, {"authorization": cluster.session.headers["Authorization"]})
            == 401
        )
        assert await direct(replica, {"authorization": f"Bearer {own['API_KEY']}"}) == 200
        denied.write_text("")
        await agent_replaced(cluster)
        assert await content(cluster, cluster.urls[0] + CHAT) == said[0]
        assert denied.read_text() == ""
        await cluster.archived()
        (database,) = cluster.state.rglob("audit.db")
        key = own["API_KEY"].encode()
        assert key not in archived(database) and b"{key}" in archived(database)
        assert [path for path in files(tmp_path) if key in path.read_bytes()] == []
        assert [pid for pid, line in command_lines() if key in line] == []


async def until_ready(cluster: Chaos) -> dict[str, Any]:
    """Return the replica as soon as it is ready."""
    async with asyncio.timeout(WAIT_S):
        while True:
            model = await cluster.get("/v1/deployments/chat")
            for replica in model["replicas"]:
                if replica["ready"]:
                    found: dict[str, Any] = replica
                    return found
            await asyncio.sleep(0.05)


async def content(cluster: Chaos, url: str) -> str:
    body = {"model": "chat", "messages": MESSAGES}
    async with cluster.session.post(url, json=body) as answer:
        text = await answer.text()
        assert answer.status == 200, text
        return str((await answer.json())["choices"][0]["message"]["content"])


async def direct(replica: dict[str, Any], headers: dict[str, str]) -> int:
    url = f"http://{replica['address']}:{replica['port']}{CHAT}"
    body = {"model": "chat", "messages": MESSAGES}
    async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=body) as a:
        return a.status


async def agent_replaced(cluster: Chaos) -> None:
    """Kill the agent; wait until the next one has probed the replica."""
    before = await ready_facts(cluster)
    agent = cluster.ticket("node-1")
    assert agent is not None
    os.kill(agent.pid, signal.SIGKILL)
    async with asyncio.timeout(WAIT_S):
        while await ready_facts(cluster) == before:
            await asyncio.sleep(0.1)


async def ready_facts(cluster: Chaos) -> int:
    return sum(fact["kind"] == "replica.ready" for fact in await cluster.history("chat-1"))


def environment_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def command_lines() -> list[tuple[str, bytes]]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append((path.parent.name, path.read_bytes()))
        except OSError:
            continue  # it has ended
    return found
