"""A stand-in for a model server: it really speaks the OpenAI protocol, and it is not a model.

Its answers are the last message's words said back, one word a token, so that they can be predicted;
its embeddings are hashes. Use it to try deployments, gateways and clients on a machine without a
model. Every answer says `"system_fingerprint": "muster-stand-in"`.

    python3 examples/model_server.py --port 8000
    muster deploy tiny --replicas 2 --wait -- python3 examples/model_server.py --port {port}

Chat, completions and embeddings, streamed or not, with usage; /v1/models; /health. Only aiohttp is
needed.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from aiohttp import web

FINGERPRINT = "muster-stand-in"
DIMENSIONS = 64
TOKENS_MAX_DEFAULT = 256
CHOICES_MAX = 16
BODY_BYTES_MAX = 64 << 20

Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPTIONS = web.AppKey("options", argparse.Namespace)
STATE = web.AppKey("state", dict)


class Wrong(Exception):
    """A request that is not valid, in OpenAI's error shape."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": None}}


# The content of answers.


def tokens_of(text: str) -> list[str]:
    """Words with the space before them: joined they are the text again."""
    words = text.split(" ")
    return [word if index == 0 else f" {word}" for index, word in enumerate(words)] if text else []


def text_of(content: object) -> str:
    """A message's text; of a list of parts those that are text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return " ".join(
        str(part.get("text", ""))
        for part in parts
        if isinstance(part, dict) and part.get("type") == "text"
    )


def chat_prompt(body: Json) -> str:
    messages = body.get("messages")
    if (
        not isinstance(messages, list)
        or not messages
        or not all(isinstance(message, dict) for message in messages)
    ):
        raise Wrong("messages must be a list of at least one message", "messages")
    return "\n".join(text_of(message.get("content")) for message in messages)


def completion_prompt(body: Json) -> str:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise Wrong(
            "prompt must be one string: this stand-in answers no lists of prompts", "prompt"
        )
    return prompt


def reply_to(prompt: str) -> str:
    """The last line of the prompt, said back."""
    return f"You said: {prompt.splitlines()[-1] if prompt.splitlines() else ''}"


def limit_of(body: Json) -> int:
    limit = body.get("max_completion_tokens", body.get("max_tokens")) or TOKENS_MAX_DEFAULT
    if not isinstance(limit, int) or limit < 1:
        raise Wrong("max_tokens must be a whole number above 0", "max_tokens")
    return limit


def choices_of(body: Json) -> int:
    count = body.get("n") or 1
    if not isinstance(count, int) or not 1 <= count <= CHOICES_MAX:
        raise Wrong(f"n must be from 1 to {CHOICES_MAX}", "n")
    return count


def first_tool(body: Json) -> Json | None:
    """The function to call: when the client says that one must be called, or that this
    one must be.
    """
    choice, tools = body.get("tool_choice"), body.get("tools")
    if not isinstance(tools, list) or not tools or choice in (None, "auto", "none"):
        return None
    name = choice["function"]["name"] if isinstance(choice, dict) else tools[0]["function"]["name"]
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}}


# The format of answers.


class Answer:
    """One request's answer: the same tokens whole or streamed. `chat` decides the shape."""

    def __init__(self, body: Json, model: str, chat: bool) -> None:
        prompt = chat_prompt(body) if chat else completion_prompt(body)
        tokens, limit = tokens_of(reply_to(prompt)), limit_of(body)
        self.chat = chat
        self.tool = first_tool(body) if chat else None
        self.tokens = [] if self.tool else tokens[:limit]
        self.finish = "tool_calls" if self.tool else "length" if len(tokens) > limit else "stop"
        self.count = choices_of(body)
        self.prompt_tokens = len(prompt.split())
        self.with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        kind = "chat.completion" if chat else "text_completion"
        self.head: Json = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{os.urandom(12).hex()}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }

    def usage(self) -> Json:
        completion = len(self.tokens) * self.count
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }

    def whole(self) -> Json:
        return {
            **self.head,
            "choices": [self._choice(index) for index in range(self.count)],
            "usage": self.usage(),
        }

    def _choice(self, index: int) -> Json:
        text = "".join(self.tokens)
        if not self.chat:
            return {"index": index, "text": text, "logprobs": None, "finish_reason": self.finish}
        message: Json = {"role": "assistant", "content": None if self.tool else text}
        if self.tool:
            message["tool_calls"] = [self.tool]
        return {"index": index, "message": message, "logprobs": None, "finish_reason": self.finish}

    def chunks(self) -> Iterator[Json]:
        """Every chunk of a stream but the closing `[DONE]`."""
        head = {**self.head, "object": "chat.completion.chunk"} if self.chat else self.head
        usage = {"usage": None} if self.with_usage else {}
        for choices in self._deltas():
            yield {**head, "choices": choices, **usage}
        if self.with_usage:
            yield {**head, "choices": [], "usage": self.usage()}

    def _deltas(self) -> Iterator[list[Json]]:
        everyone = range(self.count)
        if self.chat:
            yield [self._delta(index, {"role": "assistant", "content": ""}) for index in everyone]
        if self.tool:
            yield [
                self._delta(index, {"tool_calls": [{"index": 0, **self.tool}]})
                for index in everyone
            ]
        for token in self.tokens:
            yield [
                self._delta(index, {"content": token} if self.chat else token) for index in everyone
            ]
        yield [self._delta(index, {} if self.chat else "", self.finish) for index in everyone]

    def _delta(self, index: int, said: object, finish: str | None = None) -> Json:
        name = "delta" if self.chat else "text"
        return {"index": index, name: said, "logprobs": None, "finish_reason": finish}


def embedding(text: str, dimensions: int) -> list[float]:
    """Return numbers that depend only on the text; they have no meaning."""
    digest = hashlib.shake_256(text.encode()).digest(dimensions)
    numbers = [byte / 127.5 - 1 for byte in digest]
    length = sum(number * number for number in numbers) ** 0.5 or 1.0
    return [number / length for number in numbers]


# The report on its devices.


class Devices:
    """Context manager that counts how long the model's devices compute while it answers.

    On a simulated node it reports the time in the file that docs/howto/simulated-devices.md
    describes. Other nodes do not read that file.
    """

    def __init__(self) -> None:
        self.told: int | None = None
        if folder := os.environ.get("MUSTER_JOB_DIR"):
            with contextlib.suppress(OSError):  # it serves all the same
                self.told = os.open(f"{folder}/device-seconds", os.O_WRONLY | os.O_CREAT, 0o600)
        self.answering, self.used_s, self.since_s = 0, 0.0, 0.0

    def __enter__(self) -> None:
        self._count(1)

    def __exit__(self, *_: object) -> None:
        self._count(-1)

    def _count(self, change: int) -> None:
        now_s = time.monotonic()
        self.used_s += now_s - self.since_s if self.answering else 0.0
        self.since_s, self.answering = now_s, self.answering + change
        if self.told is not None:
            os.pwrite(self.told, f"{self.used_s:.6f}".encode(), 0)


DEVICES = web.AppKey("devices", Devices)

# The server.


async def generate(request: web.Request, chat: bool) -> web.StreamResponse:
    options, state = request.app[OPTIONS], request.app[STATE]
    state["requests"] += 1
    if options.fail_every and state["requests"] % options.fail_every == 0:
        raise Wrong("this stand-in was told to fail", status=500, kind="server_error")
    body = await body_of(request)
    answer = Answer(body, served(options, body), chat)
    with request.app[DEVICES]:
        await asyncio.sleep(options.first_token_ms / 1_000)
        if body.get("stream"):
            return await stream(request, answer, options.token_ms / 1_000)
        await asyncio.sleep(len(answer.tokens) * options.token_ms / 1_000)
        return web.json_response(answer.whole())


async def stream(request: web.Request, answer: Answer, token_s: float) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
    )
    await response.prepare(request)
    async for line in paced(answer, token_s):
        await response.write(line)
    await response.write_eof()
    return response


async def paced(answer: Answer, token_s: float) -> AsyncIterator[bytes]:
    for chunk in answer.chunks():
        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
        if token_s:
            await asyncio.sleep(token_s)
    yield b"data: [DONE]\n\n"


async def chat_completions(request: web.Request) -> web.StreamResponse:
    return await generate(request, chat=True)


async def completions(request: web.Request) -> web.StreamResponse:
    return await generate(request, chat=False)


async def embeddings(request: web.Request) -> web.Response:
    body = await body_of(request)
    given = body.get("input")
    texts = [
        text for text in (given if isinstance(given, list) else [given]) if isinstance(text, str)
    ]
    if not texts or (isinstance(given, list) and len(texts) < len(given)):
        raise Wrong("input must be a string, or a list of strings", "input")
    dimensions = body.get("dimensions") or DIMENSIONS
    if not isinstance(dimensions, int) or not 1 <= dimensions <= 4_096:
        raise Wrong("dimensions must be from 1 to 4096", "dimensions")
    used = sum(len(text.split()) for text in texts)
    data = [
        vector(index, embedding(text, dimensions), body.get("encoding_format"))
        for index, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": used, "total_tokens": used}
    return web.json_response(
        {
            "object": "list",
            "data": data,
            "model": served(request.app[OPTIONS], body),
            "usage": usage,
        }
    )


def vector(index: int, numbers: list[float], form: object) -> Json:
    """As floats, or as base64 of little-endian float32, which OpenAI's client asks for."""
    if form != "base64":
        return {"object": "embedding", "index": index, "embedding": numbers}
    import base64
    import struct

    return {
        "object": "embedding",
        "index": index,
        "embedding": base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode(),
    }


async def models(request: web.Request) -> web.Response:
    options = request.app[OPTIONS]
    one = {
        "id": options.model,
        "object": "model",
        "created": request.app[STATE]["began"],
        "owned_by": FINGERPRINT,
    }
    return web.json_response({"object": "list", "data": [one]})


async def health(request: web.Request) -> web.Response:
    """503 while it pretends to load, and again when it was told to become unhealthy."""
    options, age_s = request.app[OPTIONS], time.monotonic() - request.app[STATE]["began_s"]
    if age_s < options.start_s:
        return web.json_response({"status": "loading"}, status=503)
    if options.unhealthy_after_s and age_s > options.unhealthy_after_s:
        return web.json_response({"status": "unhealthy"}, status=503)
    return web.json_response({"status": "ok", "requests": request.app[STATE]["requests"]})


def served(options: argparse.Namespace, body: Json) -> str:
    """The name that the client used, as most servers do."""
    return str(body.get("model") or options.model)


async def body_of(request: web.Request) -> Json:
    try:
        body = json.loads(await request.read())
    except ValueError as error:
        raise Wrong(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Wrong("the body must be a JSON object")
    return body


@web.middleware
async def in_openai_s_shape(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors as OpenAI's clients expect them."""
    try:
        return await handler(request)
    except Wrong as error:
        return web.json_response(error.body, status=error.status)
    except web.HTTPException as error:
        return web.json_response(
            Wrong(f"{request.method} {request.path}: {error.reason}").body, status=error.status
        )


async def die_later(app: web.Application) -> None:
    """For trying what a crash does."""
    seconds = app[OPTIONS].crash_after_s
    if seconds:
        asyncio.get_running_loop().call_later(seconds, os._exit, 3)


def application(options: argparse.Namespace) -> web.Application:
    app = web.Application(middlewares=[in_openai_s_shape], client_max_size=BODY_BYTES_MAX)
    app[OPTIONS], app[STATE] = (
        options,
        {"requests": 0, "began": int(time.time()), "began_s": time.monotonic()},
    )
    app[DEVICES] = Devices()
    app.router.add_post("/v1/chat/completions", chat_completions)
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/embeddings", embeddings)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", health)
    app.on_startup.append(die_later)
    return app


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        description=(
            "A stand-in for a model server: it speaks the OpenAI protocol, and is not a model."
        )
    )
    found.add_argument("--host", default="0.0.0.0")
    found.add_argument("--port", type=int, default=int(os.environ.get("PORT", "8000")))
    found.add_argument("--model", default="stand-in", help="the name under which it serves")
    found.add_argument("--token-ms", type=float, default=0, help="delay per token")
    found.add_argument(
        "--first-token-ms", type=float, default=0, help="delay before the first token"
    )
    found.add_argument(
        "--start-s", type=float, default=0, help="how long /health says 503 at first"
    )
    found.add_argument(
        "--fail-every",
        type=int,
        default=0,
        metavar="N",
        help="answer every Nth request with status 500",
    )
    found.add_argument(
        "--unhealthy-after-s", type=float, default=0, help="from when on /health says 503"
    )
    found.add_argument(
        "--crash-after-s", type=float, default=0, help="when it exits with 3; negative: at once"
    )
    return found


def main() -> None:
    options = parser().parse_args()
    if options.crash_after_s < 0:
        sys.exit(3)
    print(
        (
            f"{FINGERPRINT} listens on {options.host}:{options.port}: it speaks the OpenAI "
            "protocol and is not a model"
        ),
        flush=True,
    )
    web.run_app(
        application(options), host=options.host, port=options.port, print=None, handle_signals=True
    )


if __name__ == "__main__":
    main()
