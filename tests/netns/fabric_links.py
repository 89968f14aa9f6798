"""Namespaces joined by one switch, with the rate of each node and of each link set by `tc`.

A node's rate bounds what it sends and, at its port of the switch, what it receives. A link's rate
bounds what its two nodes send to each other. Everything is made here and removed here.
"""

import subprocess
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

WAIT_S: Final = 20
# The classes only sort packets; a token bucket below each of them limits the rate.
OPEN: Final = "10gbit"


def run(*words: str, text: str = "") -> None:
    done = subprocess.run(
        words, input=text, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


class Links:
    """`count` namespaces; node i has the address `hosts[i]`."""

    def __init__(self, count: int) -> None:
        tag = uuid.uuid4().hex[:6]
        self.switch = f"mf-{tag}"
        self.names = [f"mf-{tag}-{index}" for index in range(count)]
        self.hosts = [f"10.77.0.{index + 1}" for index in range(count)]
        self.made: list[str] = []

    def open(self, rate_kbit: int) -> None:
        """Make all namespaces and links. Raises OSError if that is not possible here."""
        self._namespace(self.switch)
        run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "br0", "up")
        for index, (name, host) in enumerate(zip(self.names, self.hosts, strict=True)):
            self._namespace(name)
            port = f"p{index}"
            peer = ("peer", "name", port, "netns", self.switch)
            run("ip", "-n", name, "link", "add", "eth0", "type", "veth", *peer)
            run("ip", "-n", name, "addr", "add", f"{host}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", self.switch, "link", "set", port, "master", "br0", "up")
        self.shape([rate_kbit] * len(self.names), {})

    def _namespace(self, name: str) -> None:
        run("ip", "netns", "add", name)
        self.made.append(name)

    def shape(self, rates_kbit: Sequence[int], links: Mapping[tuple[int, int], int]) -> None:
        """Set the rate of each node, and of these links."""
        ports = [
            line
            for index, rate in enumerate(rates_kbit)
            for line in _limited(f"p{index}", rate, {})
        ]
        self._batch(self.switch, ports)
        for index, name in enumerate(self.names):
            slow = {
                self.hosts[b if a == index else a]: rate
                for (a, b), rate in links.items()
                if index in (a, b)
            }
            self._batch(name, _limited("eth0", rates_kbit[index], slow))

    def _batch(self, namespace: str, lines: Sequence[str]) -> None:
        words = ("ip", "netns", "exec", namespace, "tc", "-force", "-batch", "-")
        done = subprocess.run(
            words,
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        # The first line removes what is there, which fails where nothing is.
        errors = [line for line in done.stderr.splitlines() if "Error" in line]
        if len(errors) > sum(line.startswith("qdisc del") for line in lines):
            raise OSError(f"tc in {namespace}: {'; '.join(errors)}")

    def close(self) -> None:
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=WAIT_S)


def _limited(device: str, rate_kbit: int, slow: Mapping[str, int]) -> list[str]:
    """Return the lines for tc that limit a device, and what it sends to some hosts."""
    lines = [
        f"qdisc del dev {device} root",
        f"qdisc add dev {device} root handle 1: htb default 10",
    ]
    rates = {10: rate_kbit, **dict(enumerate(slow.values(), 20))}
    for number, rate in rates.items():
        lines += [
            f"class add dev {device} parent 1: classid 1:{number} htb rate {OPEN} quantum 1514",
            f"qdisc add dev {device} parent 1:{number} handle {number}: tbf "
            f"rate {rate}kbit burst 6000 limit 20000",
        ]
    for number, host in enumerate(slow, 20):
        lines.append(
            f"filter add dev {device} parent 1: protocol ip prio 1 u32 "
            f"match ip dst {host}/32 flowid 1:{number}"
        )
    return lines
