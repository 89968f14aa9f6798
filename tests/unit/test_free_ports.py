"""libs/embedded/servers.py: which ports the servers of a cluster get."""

import socket
from pathlib import Path

import pytest

from libs.common.errors import Unavailable
from libs.embedded import servers
from libs.embedded.nats_config import LOOPBACK


@pytest.fixture
def outgoing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the range of the kernel's ports for outgoing connections."""
    made = tmp_path / "ip_local_port_range"
    made.write_text("32768\t60999\n")
    monkeypatch.setattr(servers, "OUTGOING_PORTS", made)
    return made


def test_ports_differ_and_no_outgoing_connection_gets_one(outgoing: Path) -> None:
    ports = servers.free_ports(60)
    assert len(set(ports)) == 60
    assert all(servers.PORTS_FROM <= port < 32_768 for port in ports)
    assert servers.PORTS_FROM <= servers.free_port_run(3) < 32_768


def test_all_ports_of_a_run_are_below_those_of_outgoing_connections(
    outgoing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "free_ports", lambda count: [32_766, 32_764])
    monkeypatch.setattr(servers, "port_is_free", lambda host, port: True)
    assert servers.free_port_run(3) == 32_764


@pytest.mark.parametrize("text", [None, "", "none"])
def test_all_ports_are_used_where_the_range_cannot_be_read(
    outgoing: Path, text: str | None
) -> None:
    outgoing.unlink()
    if text is not None:
        outgoing.write_text(text)
    assert len(servers.free_ports(5)) == 5


def test_all_ports_are_used_where_the_kernel_leaves_few(outgoing: Path) -> None:
    outgoing.write_text("1024 65535")
    assert len(servers.free_ports(5)) == 5


def test_a_port_that_is_listened_on_is_not_free(outgoing: Path) -> None:
    with socket.create_server((LOOPBACK, servers.free_ports(1)[0])) as listener:
        assert not servers.port_is_free(LOOPBACK, listener.getsockname()[1])


def test_too_few_free_ports_are_told(outgoing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "port_is_free", lambda host, port: False)
    with pytest.raises(Unavailable, match=r"fewer than 2 ports of 127\.0\.0\.1 are free"):
        servers.free_ports(2)
