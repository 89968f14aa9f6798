"""Certificates and the authority are renewed while machines are joined and jobs run.

The agents keep their jobs and connect again to servers of the new authority.
"""

import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from libs.common.safety.following import TLS_NAME
from libs.embedded import plan, runfile, shape
from libs.embedded.living import is_living
from tests.integration.backup_world import HERE, Machine, World

pytestmark = pytest.mark.drill

LONG_S = 300.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.close()


def shown(world: World) -> bytes:
    """Return the certificate that the NATS server shows, as bytes; none while it is down."""
    found = shape.load(world.state)
    assert found is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((HERE, found.nats_port), 5.0) as plain,
            context.wrap_socket(plain, server_hostname=TLS_NAME) as secure,
        ):
            return secure.getpeercert(binary_form=True) or b""
    except OSError:
        return b""


def authority_of(der: bytes, world: World, name: str) -> bool:
    """Return whether the authority in this file has signed the certificate."""
    pem = (world.state / "keys" / name).read_bytes()
    try:
        certificate = x509.load_der_x509_certificate(der)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(pem))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def all_healthy(world: World, count: int) -> bool:
    states = [node["state"] for node in world.get("/v1/nodes")["nodes"]]
    return states == ["healthy"] * count


def kill_server(world: World) -> None:
    """Kill the NATS server; the launcher starts it again, and every client connects anew."""
    run = runfile.read(world.state)
    assert run is not None
    ticket = run.children[plan.SERVER]
    os.kill(ticket.pid, signal.SIGKILL)
    world.until(lambda: not is_living(ticket), "the server is dead")


@pytest.mark.timeout(300)
def test_agents_keep_working_over_a_change_of_the_authority(world: World) -> None:
    world.machines = [Machine(world, name) for name in ("m1", "m2")]
    world.until(lambda: all_healthy(world, 2), "both machines are healthy")
    job = world.submit(LONG_S)
    world.until(lambda: world.jobs()[job]["state"] == "running", "the job runs")
    agents = [machine.process.pid for machine in world.machines]
    first = shown(world)

    world.cli("certificates", "renew", "--state", str(world.state))
    world.until(lambda: shown(world) != first, "the server shows its new certificate")
    assert authority_of(shown(world), world, "ca.pem")

    idle = 0 if "m2" in world.jobs()[job]["node_ids"] else 1
    os.kill(agents[idle], signal.SIGSTOP)
    said = world.cli("certificates", "renew", "--authority", "--state", str(world.state), code=2)
    assert f"{world.machines[idle].name} could not connect" in said
    assert authority_of(shown(world), world, "ca.pem")
    os.kill(agents[idle], signal.SIGCONT)

    old = (world.state / "keys" / "ca.pem").read_text()
    world.cli("certificates", "renew", "--authority", "--state", str(world.state))
    assert (world.state / "keys" / "ca.pem").read_text() != old
    world.until(lambda: authority_of(shown(world), world, "ca.pem"), "the new authority signs")

    kill_server(world)
    world.until(
        lambda: authority_of(shown(world), world, "ca.pem") and all_healthy(world, 2),
        "the machines have connected to the new authority",
    )
    assert [machine.process.pid for machine in world.machines] == agents
    later = world.submit(0.1)
    world.until(lambda: world.jobs()[later]["state"] == "completed", "jobs run as before")
    assert (world.jobs()[job]["state"], world.jobs()[job]["attempt"]) == ("running", 1)
