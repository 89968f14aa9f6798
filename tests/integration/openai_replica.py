"""A replica for tests: a real HTTP server that speaks the protocol, and does what the request's own
`x_*` fields say.

`python -m tests.integration.openai_replica PORT` runs it as a process that can be killed;
`running()` in this one, where a test can look at what it received. Fields: x_status (answer this),
x_delay_s (before anything), x_gap_s (between chunks), x_comment_s (after a comment), x_chunks,
x_die ("before", "head", "middle", "finished", "done": the connection is cut there; "each": each
replica's stream is cut after its second chunk; "middle" spares a continued stream), x_finish (so
many choices end with a finish_reason), x_indexes (so many choices take turns), x_no_done. With
`wants_uuid` it answers an empty 400 to a request whose x-request-id is no UUID, as some servers do.
With `base`, the name of its model, it knows that and its adapters alone. It loads and unloads them
as vLLM does, and as SGLang at paths without /v1. `unloadable` are folders that it cannot load.
"""

import asyncio
import hashlib
import json
import re
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import BodyPartReader, web

USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


class Replica:
    """A replica under test control; it records its requests and how each of them ended."""

    def __init__(self) -> None:
        self.port = 0
        self.wants_uuid = False
        self.probes = 0
        self.probes_max = 1 << 30
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.cancelled = 0
        self.forms: list[dict[str, Any]] = []
        self.begun = asyncio.Event()
        self.connections: set[int] = set()
        self.base = ""
        self.adapters: dict[str, str] = {}
        self.unloadable: set[str] = set()
        self.load_s = 0.0
        self.lora_calls: list[str] = []

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 << 20)
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
            app.router.add_post(path, self._post)
        for path in ("/v1/responses", "/v1/audio/{what}", "/v1/images/{what}"):
            app.router.add_post(path, self._pass)
        for path in ("/v1/rerank", "/v1/score", "/tokenize", "/detokenize"):
            app.router.add_post(path, self._pass)
        for path in ("", "/v1"):
            app.router.add_post(f"{path}/load_lora_adapter", self._load)
            app.router.add_post(f"{path}/unload_lora_adapter", self._unload)
        app.router.add_get("/received", self._received)
        app.router.add_get("/health", self._healthy)
        return app

    async def _received(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"received": [json.loads(body).get("x_id") for body in self.bodies]}
        )

    async def _load(self, request: web.Request) -> web.Response:
        asked = await request.json()
        name, path = asked["lora_name"], asked["lora_path"]
        self.lora_calls.append(f"load {name}")
        await asyncio.sleep(self.load_s)
        if name in self.adapters:
            text = f"The lora adapter '{name}' has already been loaded."
            return web.json_response({"message": text, "code": 400}, status=400)
        if path in self.unloadable:
            text = f"Loading lora {name} failed: No adapter found for {path}"
            return web.json_response({"error": {"message": text}}, status=404)
        self.adapters[name] = path
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        self.lora_calls.append(f"unload {name}")
        if self.adapters.pop(name, None) is None:
            return web.json_response({"message": f"'{name}' cannot be found."}, status=404)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    def _unknown(self, request: web.Request, model: str) -> web.Response | None:
        """Return the answer to a request for a model or adapter that the replica does not have."""
        _, is_sglang, adapter = model.partition(":")
        if not self.base or model in (self.base, *self.adapters) or adapter in self.adapters:
            return None
        text, status = f"The model `{model}` does not exist.", 404
        if is_sglang:
            text, status = f"The requested LoRA adapters are not loaded: {adapter}", 400
        return web.json_response({"error": {"message": text, "code": status}}, status=status)

    async def _healthy(self, request: web.Request) -> web.Response:
        self.probes += 1
        if self.probes > self.probes_max:
            await asyncio.sleep(3_600)
        return web.Response()

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        asked = json.loads(body)
        if self.wants_uuid and not _is_uuid(request.headers.get("x-request-id", "")):
            return web.Response(status=400)
        if (unknown := self._unknown(request, asked["model"])) is not None:
            return unknown
        try:
            return await self._answer(request, asked)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        """Answer a form or a JSON body of another endpoint, with the fields that came."""
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if request.content_type == "multipart/form-data":
            return await self._form(request)
        body = await request.read()
        self.bodies.append(body)
        asked = json.loads(body)
        if request.path == "/v1/audio/speech":
            return await _speech(request, asked)
        if asked.get("stream"):
            return await _typed_events(request, asked)
        usage = {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}
        return web.json_response({"path": request.path, "model": asked["model"], "usage": usage})

    async def _form(self, request: web.Request) -> web.StreamResponse:
        found: dict[str, Any] = {}
        try:
            async for part in await request.multipart():
                assert isinstance(part, BodyPartReader)
                if part.filename:
                    self.begun.set()
                data = bytes(await part.read())
                digest = hashlib.sha256(data).hexdigest()
                found[part.name or ""] = [len(data), digest] if part.filename else data.decode()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.forms.append(found)
        status = 503 if found.get("x_busy") else 200
        return web.json_response({"text": "hello", "usage": {"total_tokens": 9}}, status=status)

    async def _answer(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(asked.get("x_delay_s", 0))
        if asked.get("x_die") == "before":
            cut(request)
        if "x_status" in asked:
            return web.json_response(
                asked.get("x_body", {"error": {"message": "as asked"}}), status=asked["x_status"]
            )
        if asked.get("stream"):
            return await self._stream(request, asked)
        if request.path == "/v1/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}]
            return web.json_response(
                {
                    "object": "list",
                    "data": data,
                    "model": asked["model"],
                    "usage": {"prompt_tokens": 5, "total_tokens": 5},
                }
            )
        return web.json_response(_whole(request.path, asked))

    async def _stream(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if asked.get("x_die") == "head":
            cut(request)
        if "x_comment_s" in asked:
            await response.write(b": no data: yet\n\n")
            await asyncio.sleep(asked["x_comment_s"])
        chunks, start = asked.get("x_chunks", 3), _words_so_far(request.path, asked)
        for number in range(start, chunks):
            if number == _cut_at(asked, start, chunks):
                await response.write(b'data: {"half an ev')
                await asyncio.sleep(0.05)
                cut(request)
            await response.write(_event(_chunk(request.path, asked, number)))
            await asyncio.sleep(asked.get("x_gap_s", 0))
        for index in range(asked.get("x_finish", 0)):
            last = _chunk(request.path, asked, 0)
            choice = {
                **last["choices"][0],
                "index": index,
                "delta": {},
                "text": "",
                "finish_reason": "stop",
            }
            await response.write(_event({**last, "choices": [choice]}))
        if asked.get("x_die") == "finished":
            await asyncio.sleep(0.05)
            cut(request)
        if (asked.get("stream_options") or {}).get("include_usage"):
            await response.write(
                _event({**_chunk(request.path, asked, 0), "choices": [], "usage": USAGE})
            )
        if not asked.get("x_no_done"):
            await response.write(b"data: [DONE]\n\n")
        if asked.get("x_die") == "done":
            await asyncio.sleep(0.05)
            cut(request)
        return response


def _words_so_far(path: str, asked: dict[str, Any]) -> int:
    """Return how many words of the answer a continued request has already."""
    if path == "/v1/completions":
        return len(re.findall(r"w\d+ ", str(asked.get("prompt", ""))))
    if not asked.get("continue_final_message"):
        return 0
    return len(re.findall(r"w\d+ ", asked["messages"][-1]["content"]))


def _cut_at(asked: dict[str, Any], start: int, chunks: int) -> int:
    """Return the chunk before which the stream is cut; -1 for none."""
    if asked.get("x_die") == "each":
        return start + 2
    return chunks // 2 if asked.get("x_die") == "middle" and not start else -1


async def _speech(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "audio/mpeg"})
    await response.prepare(request)
    for number in range(4):
        if number == 2 and asked.get("x_die"):
            cut(request)
        await response.write(bytes([number]) * 1_000)
        await asyncio.sleep(asked.get("x_gap_s", 0.01))
    return response


async def _typed_events(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
    """The events of /v1/responses: the last one has the usage, and no [DONE] follows."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for word in ("a", '"type":"response.completed"'):
        await response.write(_event({"type": "response.output_text.delta", "delta": word}))
    if asked.get("x_die"):
        await asyncio.sleep(0.05)
        cut(request)
    usage = {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}
    await response.write(_event({"type": "response.completed", "response": {"usage": usage}}))
    return response


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def cut(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()
    raise ConnectionResetError("as asked")


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _whole(path: str, asked: dict[str, Any]) -> dict[str, Any]:
    shared = {"id": "c-1", "created": 1, "model": asked["model"], "usage": USAGE}
    if path == "/v1/completions":
        return {
            **shared,
            "object": "text_completion",
            "choices": [{"index": 0, "text": "hello", "finish_reason": "stop", "logprobs": None}],
        }
    message: dict[str, Any] = {"role": "assistant", "content": "hello"}
    if asked.get("tools"):
        call = {
            "id": "t-1",
            "type": "function",
            "function": {"name": asked["tools"][0]["function"]["name"], "arguments": "{}"},
        }
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {
        **shared,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }


def _chunk(path: str, asked: dict[str, Any], number: int) -> dict[str, Any]:
    shared = {"id": "c-1", "created": 1, "model": asked["model"]}
    if path == "/v1/completions":
        return {
            **shared,
            "object": "text_completion",
            "choices": [
                {"index": 0, "text": f"w{number} ", "finish_reason": None, "logprobs": None}
            ],
        }
    index = number % asked.get("x_indexes", 1)
    choice = {"index": index, "delta": {"content": f"w{number} "}, "finish_reason": None}
    return {**shared, "object": "chat.completion.chunk", "choices": [choice]}


@asynccontextmanager
async def running(
    port: int = 0, keepalive_s: float = 75.0, replica: Replica | None = None
) -> AsyncIterator[Replica]:
    replica = replica or Replica()
    runner = web.AppRunner(
        replica.app(),
        handler_cancellation=True,
        keepalive_timeout=keepalive_s,
        shutdown_timeout=0.1,
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    assert site._server is not None
    replica.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    try:
        yield replica
    finally:
        await runner.cleanup()


async def main(port: int, probes_max: int = 1 << 30) -> None:
    """`probes_max`: after so many answers its health path is silent, as that of a server that is
    too busy.
    """
    async with running(port) as replica:
        replica.probes_max = probes_max
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
