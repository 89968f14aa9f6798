"""Other gateways in front of the same replicas: nginx, and LiteLLM with one worker.

nginx relays requests and streams; it checks no key and records nothing. LiteLLM speaks the same
protocol as Muster's gateway; it checks one key and records nothing, because the rest needs a
database. Both run in a folder of their own, on loopback, and end with the block.
"""

import os
import secrets
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from bench.peers import Missing, need
from libs.embedded import servers
from libs.embedded.living import die_with_parent

READY_S: Final = 90.0
STOP_S: Final = 10.0
LOOK_S: Final = 0.1
NGINX: Final = """\
worker_processes 1;
daemon off;
pid {folder}/pid;
error_log {folder}/log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream replicas {{
{targets}
        keepalive 128;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port};
        keepalive_requests 1000000000;
        location = /ready {{ return 200; }}
        location / {{
            proxy_pass http://replicas;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""
LITELLM: Final = """\
  - model_name: m
    litellm_params: {{model: openai/m, api_base: "http://127.0.0.1:{target}/v1", api_key: none}}
"""


class Front(NamedTuple):
    """A running gateway: its port, and the key that it asks for."""

    port: int
    key: str = "none"


@contextmanager
def nginx(targets: Sequence[int]) -> Iterator[Front]:
    """Run nginx in front of these ports. Raises Missing."""
    need(("nginx",), "apt-get install nginx-light (Debian)")
    with TemporaryDirectory(prefix="nginx-") as name:
        folder, port = Path(name), servers.free_port_run(1)
        lines = "\n".join(f"        server 127.0.0.1:{target};" for target in targets)
        file = folder / "nginx.conf"
        file.write_text(NGINX.format(folder=folder, targets=lines, port=port))
        with _running(("nginx", "-p", name, "-c", str(file)), folder, f"{port}/ready"):
            yield Front(port)


@contextmanager
def litellm(targets: Sequence[int]) -> Iterator[Front]:
    """Run LiteLLM's proxy in front of these ports. Raises Missing."""
    need(("litellm",), "pip install 'litellm[proxy]' into an environment that is on the PATH")
    with TemporaryDirectory(prefix="litellm-") as name:
        folder, port = Path(name), servers.free_port_run(1)
        file = folder / "litellm.yaml"
        models = "".join(LITELLM.format(target=target) for target in targets)
        file.write_text(f"model_list:\n{models}")
        words = ("litellm", "--config", str(file), "--port", str(port), "--host", "127.0.0.1")
        key = f"sk-{secrets.token_hex(32)}"
        with _running(words, folder, f"{port}/health/liveliness", LITELLM_MASTER_KEY=key):
            yield Front(port, key)


GATEWAYS: Final[Mapping[str, Callable[[Sequence[int]], AbstractContextManager[Front]]]] = {
    "nginx": nginx,
    "litellm": litellm,
}


@contextmanager
def _running(words: Sequence[str], folder: Path, ready: str, **settings: str) -> Iterator[None]:
    """Run a server until the end of the block, once it answers at this port and path."""
    output = folder / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, "HOME": str(folder), **settings},
            stdout=file,
            stderr=file,
            preexec_fn=die_with_parent,
        )
    try:
        deadline = time.monotonic() + READY_S
        while not _answers(f"http://127.0.0.1:{ready}"):
            if process.poll() is not None or time.monotonic() > deadline:
                lines = "\n".join(output.read_text(errors="replace").splitlines()[-8:])
                raise Missing(f"{words[0]} does not answer:\n{lines}")
            time.sleep(LOOK_S)
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
