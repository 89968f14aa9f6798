"""The stand-in of examples/: it speaks the protocol as OpenAI's clients read it, and says that it
is not a model.
"""

import base64
import importlib.util
import json
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestClient, TestServer

ROOT = Path(__file__).parents[2]
HELLO = {
    "model": "any",
    "messages": [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "one two three"},
    ],
}

Client = TestClient[Any, Any]


def example() -> ModuleType:
    """Load the file itself, with its folder on the path: the examples are not a package."""
    if str(ROOT / "examples") not in sys.path:
        sys.path.insert(0, str(ROOT / "examples"))
    spec = importlib.util.spec_from_file_location(
        "model_server", ROOT / "examples" / "model_server.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["model_server"] = module
    spec.loader.exec_module(module)
    return module


def client_of(*flags: str) -> Client:
    module = example()
    return TestClient(TestServer(module.application(module.parser().parse_args(flags))))


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Client]:
    async with client_of() as client:
        yield client


async def post(server: Client, path: str, body: object, status: int = 200) -> Any:
    answer = await server.post(path, json=body)
    assert answer.status == status, await answer.text()
    return await answer.json()


async def streamed(server: Client, path: str, body: object) -> list[Any]:
    """The chunks of a stream, which must end with [DONE]."""
    answer = await server.post(path, json=body)
    assert answer.status == 200 and answer.content_type == "text/event-stream"
    lines = [line.removeprefix("data: ") for line in (await answer.text()).split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_chat_is_answered_with_usage_and_the_word_that_it_is_no_model(
    server: Client,
) -> None:
    answer = await post(server, "/v1/chat/completions", HELLO)
    assert (answer["object"], answer["model"], answer["system_fingerprint"]) == (
        "chat.completion",
        "any",
        "muster-stand-in",
    )
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": "You said: one two three",
    }
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}


async def test_a_streamed_chat_says_the_same_word_by_word(server: Client) -> None:
    chunks = await streamed(server, "/v1/chat/completions", {**HELLO, "stream": True})
    assert all(
        chunk["object"] == "chat.completion.chunk" and "usage" not in chunk for chunk in chunks
    )
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""} and deltas[-1] == {}
    assert "".join(delta.get("content", "") for delta in deltas) == "You said: one two three"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_usage_comes_in_a_last_chunk_of_its_own_when_it_is_asked_for(server: Client) -> None:
    chunks = await streamed(
        server,
        "/v1/chat/completions",
        {**HELLO, "stream": True, "stream_options": {"include_usage": True}},
    )
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] == 10
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


async def test_a_completion_is_cut_at_max_tokens(server: Client) -> None:
    answer = await post(server, "/v1/completions", {"prompt": "a b c d", "max_tokens": 3, "n": 2})
    assert answer["object"] == "text_completion"
    assert [choice["text"] for choice in answer["choices"]] == ["You said: a"] * 2
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    assert answer["usage"]["completion_tokens"] == 6
    chunks = await streamed(server, "/v1/completions", {"prompt": "a b", "stream": True})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "You said: a b"


async def test_a_tool_is_called_when_one_must_be(server: Client) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    answer = await post(
        server, "/v1/chat/completions", {**HELLO, "tools": tools, "tool_choice": "required"}
    )
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": "{}"}
    said = await post(server, "/v1/chat/completions", {**HELLO, "tools": tools})
    assert said["choices"][0]["finish_reason"] == "stop"


async def test_the_same_text_has_the_same_embedding_as_floats_and_as_bytes(server: Client) -> None:
    answer = await post(
        server, "/v1/embeddings", {"model": "e", "input": ["a b", "c"], "dimensions": 8}
    )
    first = answer["data"][0]["embedding"]
    assert [len(each["embedding"]) for each in answer["data"]] == [8, 8] and answer["usage"][
        "prompt_tokens"
    ] == 3
    assert sum(number * number for number in first) == pytest.approx(1.0)
    packed = await post(
        server,
        "/v1/embeddings",
        {"model": "e", "input": "a b", "dimensions": 8, "encoding_format": "base64"},
    )
    assert struct.unpack("<8f", base64.b64decode(packed["data"][0]["embedding"])) == pytest.approx(
        first, abs=1e-6
    )


async def test_its_models_and_its_health_are_asked_for(server: Client) -> None:
    models = await (await server.get("/v1/models")).json()
    assert [model["id"] for model in models["data"]] == ["stand-in"] and models["object"] == "list"
    assert (await (await server.get("/health")).json())["status"] == "ok"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {**HELLO, "n": 0.5}, "n"),
        ("/v1/chat/completions", {**HELLO, "max_tokens": -1}, "max_tokens"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "prompt"),
        ("/v1/embeddings", {"input": [1, 2]}, "input"),
        ("/v1/embeddings", {"input": "a", "dimensions": 0.5}, "dimensions"),
        ("/v1/chat/completions", [], None),
    ],
)
async def test_invalid_request_gets_an_error_in_openai_s_shape(
    server: Client, path: str, body: object, param: str | None
) -> None:
    answer = await post(server, path, body, status=400)
    assert answer["error"]["type"] == "invalid_request_error" and answer["error"]["param"] == param


async def test_an_unknown_route_is_an_error_of_the_same_shape(server: Client) -> None:
    answer = await server.get("/v1/nothing")
    assert answer.status == 404 and "error" in await answer.json()


async def test_stand_in_starts_slowly_and_fails_when_its_flags_say_so() -> None:
    async with client_of("--start-s", "60") as slow:
        assert (await slow.get("/health")).status == 503
    async with client_of("--fail-every", "2") as failing:
        await post(failing, "/v1/chat/completions", HELLO)
        assert (await post(failing, "/v1/chat/completions", HELLO, status=500))["error"][
            "type"
        ] == "server_error"
    async with client_of("--unhealthy-after-s", "0.000001") as sick:
        assert (await sick.get("/health")).status == 503


async def test_stand_in_serves_without_a_writable_job_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_JOB_DIR", str(tmp_path / "not-there"))
    async with client_of() as client:
        assert (await post(client, "/v1/chat/completions", HELLO))["choices"]
