"""One veth pair into one namespace, both made here and removed here."""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator

import msgspec
import pytest


class Wire(msgspec.Struct, frozen=True):
    """`here` is this side's address, `there` the other host's, in namespace `name`."""

    name: str
    here: str
    there: str

    def inside(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *command]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


@pytest.fixture
def wire() -> Iterator[Wire]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("a network namespace needs root and the `ip` command")
    tag = uuid.uuid4().hex[:6]
    net = int(tag, 16)
    base = f"10.{200 + net % 50}.{net // 50 % 250}"
    found = Wire(f"muster-{tag}", f"{base}.1", f"{base}.2")
    near, far = f"mus{tag}a", f"mus{tag}b"
    try:
        _ip("netns", "add", found.name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")
    try:
        _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", found.name)
        _ip("addr", "add", f"{found.here}/24", "dev", near)
        _ip("link", "set", near, "up")
        for words in (
            ("addr", "add", f"{found.there}/24", "dev", far),
            ("link", "set", far, "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", found.name, *words)
        yield found
    finally:
        subprocess.run(["ip", "netns", "del", found.name], check=False, timeout=10)
        subprocess.run(["ip", "link", "del", near], check=False, capture_output=True, timeout=10)
