"""Program of a replica on several nodes: `PYTHON gang_server.py PORT`.

Rank 0 waits for the others on MASTER_PORT, then answers chats with the number of ranks. Each rank
ends when it loses another one, like a model server that is spread over nodes.
"""

import json
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MASTER = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


class Answers(BaseHTTPRequestHandler):
    """The health path and chats."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": f"{SIZE} ranks"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        self._answer({"object": "chat.completion", "choices": [choice], "usage": usage})

    def _answer(self, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Print no request."""


def ends_with(peer: socket.socket) -> None:
    """Wait until the other rank is gone, and end."""
    peer.recv(1)
    os._exit(1)


def lead(port: int) -> None:
    with socket.create_server(MASTER) as server:
        peers = [server.accept()[0] for _ in range(SIZE - 1)]
    for peer in peers:
        threading.Thread(target=ends_with, args=(peer,), daemon=True).start()
    ThreadingHTTPServer(("127.0.0.1", port), Answers).serve_forever()


def follow() -> None:
    while True:
        try:
            peer = socket.create_connection(MASTER)
        except ConnectionRefusedError:
            time.sleep(0.1)
            continue
        ends_with(peer)


if __name__ == "__main__":
    follow() if RANK else lead(int(sys.argv[1]))
