"""A small real HTTP server that plays the gateway, and the real command as a child process.

`World.routes` maps "METHOD /path" to what is answered: a value (as JSON), a Problem, or a function
of the Request, which may return either, or an iterator of byte pieces for an open stream (`Break`
cuts the connection in the middle).
"""

import json
import os
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.integration.known_answers import unknown_fields

PATIENCE_S = 30.0
KEY = "k-test"


@dataclass
class Problem:
    status: int
    detail: str
    more: dict[str, Any] = field(default_factory=dict)


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: bytes
    user_key: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body or b"{}")
        return found


class Break(Exception):
    """The connection is cut here."""


Answer = Callable[[Request], Any]


class World:
    def __init__(self, home: Path) -> None:
        self.routes: dict[str, Any] = {}
        self.seen: list[Request] = []
        # Answers of the stub that no gateway gives.
        self.invented: list[str] = []
        self.home = home
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.profile({"gateway": self.url, "key": KEY, "state": str(home / "state")})
        threading.Thread(
            target=self.server.serve_forever, daemon=True, kwargs={"poll_interval": 0.02}
        ).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        assert not self.invented, f"the stub answered with what no gateway answers: {self.invented}"

    def profile(self, value: dict[str, Any]) -> None:
        (self.home / "profile.json").write_text(json.dumps(value))

    def environ(self, **more: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {
            **kept,
            "MUSTER_PROFILE": str(self.home / "profile.json"),
            "USER": "ada",
            "LOGNAME": "ada",
            **more,
        }

    def start(
        self, *arguments: str, stdin: int = subprocess.DEVNULL, **more: str
    ) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-c", "from libs.cli.main import main; main()", *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environ(**{"PYTHONPATH": os.getcwd(), **more}),
            cwd=self.home,
        )

    def run(self, *arguments: str, stdin: bytes | None = None, **more: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of `muster ARGUMENTS`."""
        process = self.start(
            *arguments, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, **more
        )
        out, err = process.communicate(stdin, timeout=PATIENCE_S)
        return process.returncode, out.decode(), err.decode()

    def asked(self, method: str, path: str) -> list[Request]:
        return [
            request for request in self.seen if (request.method, request.path) == (method, path)
        ]


def _handler(world: World) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            query = {name: ",".join(values) for name, values in parse_qs(parts.query).items()}
            key = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            request = Request(
                method=self.command, path=unquote(parts.path), query=query, body=body, user_key=key
            )
            world.seen.append(request)
            found = world.routes.get(
                f"{request.method} {request.path}", Problem(404, f"no route {request.path}")
            )
            value = found(request) if callable(found) else found
            self.close_connection = True
            if isinstance(value, Iterator):
                self.stream(value)
            elif isinstance(value, Problem):
                problem = {
                    "title": "x",
                    "status": value.status,
                    "detail": value.detail,
                    **value.more,
                }
                self.whole(value.status, json.dumps(problem).encode(), "application/problem+json")
            else:
                world.invented += unknown_fields(request.method, request.path, value)
                self.whole(200, json.dumps(value).encode(), "application/json")

        def whole(self, status: int, data: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def stream(self, pieces: Iterator[bytes]) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for piece in pieces:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")
            except (Break, OSError):
                self.close_connection = True

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    return Handler


def job(job_id: str = "jaaaaaaaaaa", **changes: object) -> dict[str, Any]:
    """A job as the gateway shows it."""
    shown: dict[str, Any] = {
        "id": job_id, "name": "train", "state": "running", "reason": "", "user": "ada",
        "tenant": "default",
        "command": ["python", "train.py"], "workdir": "/w", "nodes": 1, "gpus": 2, "gpu_share": 100,
        "priority": 50, "labels": {},
        "attempt": 1, "retries": 0, "retries_used": 0, "exit_code": None,
        "submitted_at": "2025-01-01T00:00:00.000Z",
        "queued_at": None, "placed_at": None, "started_at": "2025-01-01T00:00:01.000Z",
        "ended_at": "2025-01-01T00:01:01.000Z",
        "node_ids": ["node-1"], "members": [], "port": 0, "seq": 7, "cancel_requested": False,
        "stop_reason": "", "time_limit_s": 0,
        "stdin": False, "waits_for": "",
    }  # fmt: skip
    return {**shown, **changes}


def line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def state(name: str, attempt: int = 1) -> bytes:
    return line({"state": name, "attempt": attempt, "reason": "", "node_ids": ["node-1"]})


def output(stream: str, offset: int, data: bytes, attempt: int = 1) -> bytes:
    return line(
        {"stream": stream, "attempt": attempt, "offset": offset, "data": b64encode(data).decode()}
    )


def ended(
    exit_code: int | None, name: str = "completed", reason: str = "", attempt: int = 1
) -> bytes:
    return line({"exit_code": exit_code, "state": name, "reason": reason, "attempt": attempt})


class FakeJob:
    """A job that `muster run` submits: input by offset, signals, and an `attach` that the test
    writes.
    """

    def __init__(
        self,
        world: World,
        attach: Callable[["FakeJob", Request], Iterator[bytes]],
        takes_bytes: int = 1 << 20,
    ) -> None:
        self.world = world
        self.input = b""
        self.takes_bytes = takes_bytes
        self.input_ended = threading.Event()
        self.stopped = threading.Event()
        self.killed = threading.Event()
        self.stops: list[dict[str, Any]] = []
        path = "/v1/jobs/jaaaaaaaaaa"
        world.routes["POST /v1/jobs"] = job(state="pending")
        world.routes[f"GET {path}/attach"] = lambda request: attach(self, request)
        world.routes[f"PUT {path}/stdin"] = self._stdin
        world.routes[f"POST {path}/cancel"] = self._cancel
        world.routes[f"POST {path}/kill"] = self._kill
        world.routes[f"GET {path}/why"] = {
            "state": "queued",
            "answer": "it needs 1 node with 2 GPUs, and not enough is free now",
        }

    @property
    def submitted(self) -> dict[str, Any]:
        (request,) = self.world.asked("POST", "/v1/jobs")
        return request.json

    def _stdin(self, request: Request) -> object:
        offset = int(request.query["offset"])
        if offset > len(self.input):
            return Problem(409, "a gap", {"next_offset": len(self.input)})
        fresh = request.body[len(self.input) - offset :][: self.takes_bytes]
        self.input += fresh
        closed = request.query.get("eof") == "1" and len(self.input) == offset + len(request.body)
        if closed:
            self.input_ended.set()
        return {"next_offset": len(self.input), "attempt": 1, "closed": closed}

    def _cancel(self, request: Request) -> object:
        self.stops.append(request.json)
        self.stopped.set()
        return job()

    def _kill(self, request: Request) -> object:
        self.killed.set()
        return job()
