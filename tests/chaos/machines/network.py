"""Hosts on one network: a namespace with an address for each, joined by a bridge.

This process has an address on the bridge too. A packet is dropped where it arrives, so each
direction between two hosts can fail alone. Everything is made here and removed here.
"""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Sequence
from typing import Final

WAIT_S: Final = 20
BRIDGE: Final = "br0"
# A host's link when it is slow: netem where the kernel has it, else a narrow token bucket, in which
# packets wait for each other.
DELAY: Final = ("netem", "delay", "150ms", "50ms")
NARROW: Final = ("tbf", "rate", "400kbit", "burst", "4000", "limit", "60000")


def missing() -> str:
    """Return why no network can be made here; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces and file systems in files need root"
    for command in ("ip", "tc", "iptables", "nsenter", "unshare", "mkfs.ext4", "mount"):
        if shutil.which(command) is None:
            return f"the command {command} is not installed"
    return ""


def run(*words: str) -> None:
    """Run a command. Raises OSError with its words if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")


class Network:
    """`names` are the hosts; `address[name]` is a host's, `here` this process's."""

    def __init__(self, names: Sequence[str]) -> None:
        self.tag = uuid.uuid4().hex[:6]
        number = int(self.tag, 16)
        net = f"10.{100 + number % 100}.{number // 100 % 250}"
        self.names = tuple(names)
        self.address = {name: f"{net}.{index + 1}" for index, name in enumerate(names)}
        self.here = f"{net}.254"
        self.switch = f"mc-{self.tag}"
        self.near = f"mc{self.tag}"
        self.made: list[str] = []

    def namespace(self, name: str) -> str:
        return f"{self.switch}-{name}"

    def inside(self, name: str) -> tuple[str, ...]:
        """Return the words before a command that shall run on that host."""
        return ("nsenter", f"--net=/run/netns/{self.namespace(name)}")

    def open(self) -> None:
        """Make all hosts. Raises OSError if that is not possible here."""
        self._add(self.switch)
        run("ip", "-n", self.switch, "link", "add", BRIDGE, "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", BRIDGE, "up")
        for index, name in enumerate(self.names):
            self._add(self.namespace(name))
            self._connect(self.namespace(name), f"p{index}", self.address[name])
        far = f"{self.near}x"
        run("ip", "link", "add", self.near, "type", "veth", "peer", far, "netns", self.switch)
        run("ip", "addr", "add", f"{self.here}/24", "dev", self.near)
        run("ip", "link", "set", self.near, "up")
        run("ip", "-n", self.switch, "link", "set", far, "master", BRIDGE, "up")

    def _add(self, namespace: str) -> None:
        run("ip", "netns", "add", namespace)
        self.made.append(namespace)
        run("ip", "-n", namespace, "link", "set", "lo", "up")

    def _connect(self, namespace: str, port: str, address: str) -> None:
        peer = ("peer", "name", port, "netns", self.switch)
        run("ip", "-n", namespace, "link", "add", "eth0", "type", "veth", *peer)
        run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", namespace, "link", "set", "eth0", "up")
        run("ip", "-n", self.switch, "link", "set", port, "master", BRIDGE, "up")

    def close(self) -> None:
        """Remove all hosts. Processes that still run on one keep it alive until they end."""
        quiet = {"check": False, "capture_output": True, "timeout": WAIT_S}
        subprocess.run(["ip", "link", "del", self.near], **quiet)  # type: ignore[call-overload]
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], **quiet)  # type: ignore[call-overload]
        self.made.clear()

    def cut(self, senders: Iterable[str], receiver: str) -> None:
        """Drop what these hosts send to `receiver`."""
        for sender in senders:
            self._rule("-A", receiver, "-s", self._address_of(sender))

    def mend(self, senders: Iterable[str], receiver: str) -> None:
        """Take back one `cut` of the same hosts."""
        for sender in senders:
            self._rule("-D", receiver, "-s", self._address_of(sender))

    def lose(self, host: str, part: float) -> None:
        """Drop this part of the packets that the host receives, at random."""
        self._rule("-A", host, *_at_random(part))

    def keep(self, host: str, part: float) -> None:
        """Take back one `lose` of the same part."""
        self._rule("-D", host, *_at_random(part))

    def slow(self, host: str) -> None:
        """Delay what the host sends."""
        added = (*self.inside(host), "tc", "qdisc", "replace", "dev", "eth0", "root")
        try:
            run(*added, *DELAY)
        except OSError:
            run(*added, *NARROW)

    def quick(self, host: str) -> None:
        """Take back `slow`."""
        run(*self.inside(host), "tc", "qdisc", "del", "dev", "eth0", "root")

    def _rule(self, verb: str, host: str, *match: str) -> None:
        run(*self.inside(host), "iptables", "-w", verb, "INPUT", *match, "-j", "DROP")

    def _address_of(self, name: str) -> str:
        return self.here if name == CLIENTS else self.address[name]


# The name of this process among the hosts of a cut.
CLIENTS: Final = "clients"


def _at_random(part: float) -> tuple[str, ...]:
    random = ("statistic", "--mode", "random", "--probability", f"{part:.3f}")
    return ("-i", "eth0", "-m", *random)
