"""A TCP proxy between an agent and the log that can stop forwarding, as a cut network does."""

import socket
import threading
import time
from urllib.parse import urlsplit

BLOCK_BYTES = 1 << 16
LOOK_S = 0.02


class Proxy:
    """Forwards connections to `url` while not `cut`. Bytes in both directions wait meanwhile."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.target = (parts.hostname or "127.0.0.1", parts.port or 4222)
        self.cut = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{parts.scheme}://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            ours, _ = self.listener.accept()
            theirs = socket.create_connection(self.target)
            for source, sink in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(BLOCK_BYTES):
                while self.cut:
                    time.sleep(LOOK_S)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            end.close()
