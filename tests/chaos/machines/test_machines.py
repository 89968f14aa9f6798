"""The faults do what they say: on a real file system and on real namespaces, as root."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.embedded.living import die_with_parent
from tests.chaos.machines import network
from tests.chaos.machines.disks import Disk
from tests.chaos.machines.network import Network

pytestmark = [
    pytest.mark.drill,
    pytest.mark.skipif(bool(network.missing()), reason=network.missing()),
]

BYTES = 64 << 20
UNTIL_S = 20.0


class Machine:
    """A process that holds a disk."""

    def __init__(self, folder: Path) -> None:
        self.disk = Disk(folder, "m", BYTES)
        self.disk.make({"given/text": "first"})
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.disk.command(
                sys.executable, "-c", "print(flush=True); import time; time.sleep(99)"
            ),
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent(),
        )
        assert self.process.stdout is not None and self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def place(self) -> Path:
        return self.disk.seen_by(self.process.pid)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    found.kill()


def write(path: Path, text: str, sync: bool) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(handle, text.encode())
    if sync:
        os.fsync(handle)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    os.close(handle)


def test_a_power_cut_keeps_what_was_synced_and_loses_the_rest(machine: Machine) -> None:
    write(machine.place / "synced", "safe", True)
    write(machine.place / "buffered", "gone", False)
    machine.disk.cut_power(machine.process.pid)
    machine.kill()
    machine.start()
    assert (machine.place / "given" / "text").read_text() == "first"
    assert (machine.place / "synced").read_text() == "safe"
    assert not (machine.place / "buffered").exists()


def test_a_kill_loses_nothing(machine: Machine) -> None:
    write(machine.place / "buffered", "kept", False)
    machine.kill()
    machine.start()
    assert (machine.place / "buffered").read_text() == "kept"


def test_a_full_disk_takes_no_write_until_it_is_freed(machine: Machine) -> None:
    machine.disk.fill(machine.process.pid)
    with pytest.raises(OSError, match="No space left"):
        write(machine.place / "large", "x" * (1 << 20), True)
    machine.kill()
    machine.start()  # a full disk is full after a restart, too
    assert (machine.place / "fill").exists()
    machine.disk.free(machine.process.pid)
    write(machine.place / "large", "x" * (1 << 20), True)


def test_the_disk_of_the_machine_that_runs_the_test_is_never_touched(machine: Machine) -> None:
    for harm in (machine.disk.fill, machine.disk.cut_power):
        with pytest.raises(OSError, match="does not see"):
            harm(os.getpid())
    assert not (machine.disk.place / "fill").exists()


def test_a_machine_that_is_off_does_not_start(machine: Machine) -> None:
    machine.kill()
    machine.disk.off.touch()
    started = subprocess.Popen(machine.disk.command("true"))
    with pytest.raises(subprocess.TimeoutExpired):
        started.wait(1.0)
    machine.disk.off.unlink()
    assert started.wait(UNTIL_S) == 0
    machine.start()


@pytest.fixture
def hosts() -> Iterator[Network]:
    found = Network(("a", "b"))
    try:
        found.open()
        yield found
    finally:
        found.close()


SEND = (
    "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
    "s.sendto(b'x', (sys.argv[1], 9))"
)
RECEIVE = (
    "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', 9)); "
    "print(flush=True); s.settimeout(float(sys.argv[1])); print(s.recv(1))"
)


def arrives(hosts: Network, sender: str, receiver: str, within_s: float = 1.0) -> bool:
    """Whether one datagram of the sender arrives."""
    listening = subprocess.Popen(
        [*hosts.inside(receiver), sys.executable, "-c", RECEIVE, str(within_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert listening.stdout is not None and listening.stdout.readline()
    words = [sys.executable, "-c", SEND, hosts.address[receiver]]
    subprocess.run([*hosts.inside(sender), *words], check=True)
    return listening.wait(UNTIL_S) == 0


def test_a_cut_drops_one_direction_only(hosts: Network) -> None:
    assert arrives(hosts, "a", "b") and arrives(hosts, "b", "a")
    hosts.cut(["a"], "b")
    assert not arrives(hosts, "a", "b")
    assert arrives(hosts, "b", "a")
    hosts.mend(["a"], "b")
    assert arrives(hosts, "a", "b")


def test_a_lossy_and_a_slow_host_are_mended_again(hosts: Network) -> None:
    hosts.lose("b", 0.99)
    hosts.slow("b")
    assert sum(arrives(hosts, "a", "b", 0.05) for _ in range(5)) < 5
    hosts.keep("b", 0.99)
    hosts.quick("b")
    assert arrives(hosts, "a", "b")


def test_all_that_was_made_is_removed() -> None:
    found = Network(("a",))
    found.open()
    found.close()
    deadline = time.monotonic() + UNTIL_S
    while found.tag in "".join(os.listdir("/run/netns")):
        assert time.monotonic() < deadline
    assert found.near not in os.listdir("/sys/class/net")
