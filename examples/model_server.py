"""Stand-in for a model server: it really speaks the OpenAI protocol, and it is not a model.

Its answers repeat the words of the last message, one word per token, so that a test can predict
them; its embeddings are hashes. Use it to try deployments, gateways and clients without a model.
Every answer contains `"system_fingerprint": "muster-stand-in"`.

    python3 examples/model_server.py --port 8000
    muster deploy tiny --replicas 2 --wait -- python3 examples/model_server.py --port {port}

It serves chat, completions and embeddings, streamed or not, with usage, and /v1/models and /health.
It needs aiohttp, and openai_answers.py beside it.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web
from openai_answers import DIMENSIONS, FINGERPRINT, Answer, Json, Wrong, embedding, vector

BODY_BYTES_MAX = 64 << 20

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPTIONS = web.AppKey("options", argparse.Namespace)
STATE = web.AppKey("state", dict)


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
    """Answer 503 during `--start-s`, and again after `--unhealthy-after-s`."""
    options, age_s = request.app[OPTIONS], time.monotonic() - request.app[STATE]["began_s"]
    if age_s < options.start_s:
        return web.json_response({"status": "loading"}, status=503)
    if options.unhealthy_after_s and age_s > options.unhealthy_after_s:
        return web.json_response({"status": "unhealthy"}, status=503)
    return web.json_response({"status": "ok", "requests": request.app[STATE]["requests"]})


def served(options: argparse.Namespace, body: Json) -> str:
    """Return the name of the model as the client wrote it, as most servers do."""
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
    """Convert errors to the shape that OpenAI's clients expect."""
    try:
        return await handler(request)
    except Wrong as error:
        return web.json_response(error.body, status=error.status)
    except web.HTTPException as error:
        return web.json_response(
            Wrong(f"{request.method} {request.path}: {error.reason}").body, status=error.status
        )


async def die_later(app: web.Application) -> None:
    """Exit with 3 after `--crash-after-s`, to test a crash."""
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
