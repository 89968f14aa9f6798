"""LiteLLM, LangChain and OpenAI's clients for Python and Node.js against a cluster that serves a
tiny model with llama.cpp.

MUSTER_TEST_CLIENTS=1 runs it (`make clients`); without it nothing runs here, because the first run
installs some 700 MB.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import openai
import pytest
import pytest_asyncio

from tests.chaos.cluster import running
from tests.clients.environments import CLIENTS, NODE, SERVER, node_with, python_with

pytestmark = [
    pytest.mark.skipif(os.environ.get("MUSTER_TEST_CLIENTS") != "1", reason="make clients runs it"),
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="module"),
]
HERE: Final = Path(__file__).parent
MODEL: Final = "tiny"
REPLICAS: Final = 2
READY_S: Final = 60.0
RUN_S: Final = 120.0
TOKENS: Final = 8


class Served(NamedTuple):
    """The address of the gateway and a key."""

    url: str
    key: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """A cluster with the tiny model, ready twice."""
    python = await asyncio.to_thread(python_with, "server", SERVER)
    command = [str(python), str(HERE / "tiny_model.py"), "--port", "{port}"]
    async with running(tmp_path_factory.mktemp("clients"), nodes=1, gpus=2) as chaos:
        body = {"name": MODEL, "replicas": REPLICAS, "command": command}
        status, answer = await chaos.try_once("POST", "/v1/deployments", json=body)
        assert status == 201, answer
        async with asyncio.timeout(READY_S):
            while True:
                shown = await chaos.get(f"/v1/deployments/{MODEL}")
                if sum(each["ready"] for each in shown["replicas"]) == REPLICAS:
                    break
                await asyncio.sleep(0.1)
        key = str(chaos.session.headers["Authorization"]).removeprefix("Bearer ")
        yield Served(str(chaos.session._base_url).rstrip("/"), key)


async def found_by(*line: str, **environment: str) -> dict[str, Any]:
    """Return what a program of another client printed."""
    done = await asyncio.to_thread(
        subprocess.run,
        line,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


async def test_openai_for_python(served: Served) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=served.key) as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        chat = await client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=TOKENS
        )
        assert chat.usage is not None and 0 < chat.usage.completion_tokens <= TOKENS
        text = await client.completions.create(model=MODEL, prompt="hi", max_tokens=TOKENS)
        assert text.usage is not None and 0 < text.usage.completion_tokens <= TOKENS


async def test_openai_for_node(served: Served) -> None:
    folder = await asyncio.to_thread(node_with, NODE)
    # An ES module finds packages only above its own place.
    program = folder / "ask_openai.mjs"
    program.write_bytes((HERE / "ask_openai.mjs").read_bytes())
    found = await found_by("node", str(program), *served, MODEL)
    answered(found)
    assert found["models"] == [MODEL]
    assert found["no_such_model"] == "NotFoundError 404"
    assert found["wrong_key"] == "AuthenticationError 401"


async def test_litellm(served: Served) -> None:
    python = await asyncio.to_thread(python_with, "python", CLIENTS)
    # Without it, LiteLLM reads a list of prices from a server on the internet.
    found = await found_by(
        *(str(python), str(HERE / "ask_litellm.py"), *served, MODEL),
        LITELLM_LOCAL_MODEL_COST_MAP="True",
    )
    answered(found)
    assert found["no_such_model"] == "NotFoundError 404"
    assert found["wrong_key"] == "AuthenticationError 401"


async def test_langchain(served: Served) -> None:
    python = await asyncio.to_thread(python_with, "python", CLIENTS)
    found = await found_by(str(python), str(HERE / "ask_langchain.py"), *served, MODEL)
    answered(found)
    assert all(0 < tokens <= TOKENS for tokens in found["at_once"]) and len(found["at_once"]) == 4
    assert found["no_such_model"] == "OpenAIModelNotFoundError 404"
    assert found["wrong_key"] == "OpenAIAuthenticationError 401"


def answered(found: dict[str, Any]) -> None:
    """Check an answer in one piece and a stream, with their usage."""
    assert 0 < found["chat_tokens"] <= TOKENS, found
    assert found["stream_chunks"] > 1 and 0 < found["stream_tokens"] <= TOKENS, found
