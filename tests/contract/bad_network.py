"""A network that loses, delays and reorders packets, into a namespace of its own.

`tc netem` makes it where the kernel has it. Elsewhere two TUN devices do, with a process between
them that treats packets in the same way.
"""

import fcntl
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

LOSS = 0.03
DELAY_S = 0.002
REORDER = 0.2
RATE_BITS = 100_000_000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
NETEM = ["netem", "loss", "3%", "delay", "2ms", "1ms", "reorder", "20%", "rate", "100mbit"]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


@contextmanager
def between() -> Iterator[tuple[str, str]]:
    """Yield the address in the namespace, and the namespace's name; skip where that cannot be."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("a bad network needs root and the commands `ip` and `tc`")
    tag = uuid.uuid4().hex[:6]
    name, net = f"muster-{tag}", int(tag, 16)
    base = f"10.{100 + net % 50}.{net // 50 % 250}"
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")
    forwarder = None
    try:
        if not _netem(name, tag, base):
            forwarder = _tun(name, tag, base)
        yield f"{base}.2", name
    finally:
        if forwarder is not None:
            forwarder.kill()
            forwarder.wait()
        subprocess.run(["ip", "netns", "del", name], check=False, timeout=10)
        subprocess.run(["ip", "link", "del", f"m{tag}a"], check=False, capture_output=True)


def _netem(name: str, tag: str, base: str) -> bool:
    near, far = f"m{tag}a", f"m{tag}b"
    _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
    done = subprocess.run(
        ["tc", "qdisc", "add", "dev", near, "root", *NETEM], capture_output=True, timeout=10
    )
    if done.returncode:
        _ip("link", "del", near)
        return False
    inside = ["ip", "netns", "exec", name]
    subprocess.run([*inside, "tc", "qdisc", "add", "dev", far, "root", *NETEM], check=True)
    _ip("addr", "add", f"{base}.1/24", "dev", near)
    _ip("link", "set", near, "up")
    _ip("-n", name, "addr", "add", f"{base}.2/24", "dev", far)
    _ip("-n", name, "link", "set", far, "up")
    return True


def _tun(name: str, tag: str, base: str) -> "subprocess.Popen[bytes]":
    near, far = f"m{tag}a", f"m{tag}b"
    if not os.path.exists("/dev/net/tun"):
        pytest.skip("this kernel has neither netem nor TUN devices")
    process = subprocess.Popen(
        [sys.executable, __file__, near, far, name], stdout=subprocess.PIPE, bufsize=0
    )
    assert process.stdout is not None and process.stdout.read(1) == b"r"
    _ip("addr", "add", f"{base}.1", "peer", f"{base}.2", "dev", near)
    _ip("link", "set", near, "up")
    _ip("-n", name, "addr", "add", f"{base}.2", "peer", f"{base}.1", "dev", far)
    _ip("-n", name, "link", "set", far, "up")
    return process


def _device(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


def _forward(near: int, far: int) -> None:
    """Pass packets on: some are lost, all are late, some overtake others."""
    chance = random.Random(1)
    late: list[tuple[float, int, bytes]] = []
    while True:
        wait_s = max(0.0, min((at_s for at_s, _, _ in late), default=1.0) - time.monotonic())
        ready, _, _ = select.select([near, far], [], [], 1.0 if not late else wait_s)
        now_s = time.monotonic()
        for device in ready:
            packet = os.read(device, 65536)
            if chance.random() >= LOSS:
                at_s = now_s + (DELAY_S / 4 if chance.random() < REORDER else DELAY_S)
                late.append((at_s, far if device == near else near, packet))
        for at_s, device, packet in [each for each in late if each[0] <= now_s]:
            late.remove((at_s, device, packet))
            with suppress(OSError):  # a device that is not up yet
                os.write(device, packet)


def _main(near: str, far: str, namespace: str) -> None:
    left, right = _device(near), _device(far)
    subprocess.run(["ip", "link", "set", far, "netns", namespace], check=True)
    print("r", end="", flush=True)
    _forward(left, right)


if __name__ == "__main__":
    _main(*sys.argv[1:])
