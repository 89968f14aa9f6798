"""RDMA ports and counters are read from a tree of sysfs; what cannot be read is unknown."""

from pathlib import Path

import pytest

from libs.job.transport import verbs
from libs.job.transport.errors import Cause, LinkError
from services.node_agent.fabric.rdma import ports
from services.node_agent.metrics import exposition

ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
LINK_LOCAL = "fe80:0000:0000:0000:c845:d4ff:fe28:c135"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a4d:0001"


def tree(root: Path, device: str, port: int, files: dict[str, str]) -> Path:
    place = root / "class/infiniband" / device / "ports" / str(port)
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text + "\n")
    return place


def card(root: Path, device: str = "mlx5_0", port: int = 1) -> Path:
    """A RoCE port as the kernel shows it."""
    return tree(
        root,
        device,
        port,
        {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
            "link_layer": "Ethernet",
            "gids/0": LINK_LOCAL,
            "gids/1": IPV4,
            "gids/2": IPV4,
            "gids/3": ZERO,
            "gid_attrs/types/0": "RoCE v2",
            "gid_attrs/types/1": "IB/RoCE v1",
            "gid_attrs/types/2": "RoCE v2",
            "counters/symbol_error": "3",
            "counters/port_rcv_errors": "0",
            "hw_counters/out_of_sequence": "7",
            "hw_counters/lifespan": "10",
        },
    )


def test_a_port_is_read_with_its_state_address_and_counters(tmp_path: Path) -> None:
    card(tmp_path)
    (found,) = ports.ports(tmp_path)
    assert (found.device, found.port, found.state, found.physical) == (
        "mlx5_0",
        1,
        "ACTIVE",
        "LinkUp",
    )
    assert (found.rate, found.layer, found.gid) == ("400 Gb/sec (4X NDR)", "Ethernet", IPV4)
    assert found.counters == {"symbol_error": 3, "port_rcv_errors": 0, "out_of_sequence": 7}
    assert found.unknown == ()


def test_a_counter_that_cannot_be_read_is_unknown_and_never_zero(tmp_path: Path) -> None:
    place = card(tmp_path)
    (place / "counters/symbol_error").write_text("N/A (no PMA)\n")
    (place / "counters/link_downed").mkdir()  # reading it is an error
    (found,) = ports.ports(tmp_path)
    assert found.unknown == ("link_downed", "symbol_error")
    assert "symbol_error" not in found.counters and "link_downed" not in found.counters
    text = exposition.text("n1", [], {}, {}, rdma=[found])
    assert 'counter="symbol_error"' not in text
    assert 'muster_rdma_port_counters_unknown{device="mlx5_0",port="1",Hostname="n1"} 2' in text


def test_metrics_show_ports_and_their_counters(tmp_path: Path) -> None:
    card(tmp_path)
    card(tmp_path, port=2).joinpath("state").write_text("1: DOWN\n")
    text = exposition.text("n1", [], {}, {}, rdma=ports.ports(tmp_path))
    assert 'muster_rdma_port_active{device="mlx5_0",port="1",Hostname="n1"} 1' in text
    assert 'muster_rdma_port_active{device="mlx5_0",port="2",Hostname="n1"} 0' in text
    line = 'muster_rdma_port_counter_total{device="mlx5_0",port="1",Hostname="n1",counter="out_of'
    assert f'{line}_sequence"}} 7' in text


def test_a_state_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    place = card(tmp_path)
    (place / "state").unlink()
    (found,) = ports.ports(tmp_path)
    assert found.state == ""
    assert "muster_rdma_port_active" not in exposition.text("n1", [], {}, {}, rdma=[found])


def test_a_machine_without_rdma_has_no_ports(tmp_path: Path) -> None:
    assert ports.ports(tmp_path) == ()
    assert "rdma" not in exposition.text("n1", [], {}, {})


class NoSupport(Exception):
    pass


class Kernel:
    """pyverbs, as far as it finds devices."""

    PyverbsRDMAError = NoSupport

    def __init__(self, found: list[str] | None) -> None:
        self.found = found

    def get_device_list(self) -> list[object]:
        if self.found is None:
            raise NoSupport("Failed to get devices list")
        return [type("Named", (), {"name": name.encode()}) for name in self.found]


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (None, "pyverbs cannot be used"),
        (Kernel(None), "kernel has no RDMA support"),
        (Kernel([]), "no device or `rdma link`"),
    ],
)
def test_each_way_to_have_no_rdma_is_said(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel | None, why: str
) -> None:
    if kernel is None:

        def missing(name: str) -> object:
            raise ImportError("IBVERBS_PRIVATE_59")

        monkeypatch.setattr(verbs, "import_module", missing)
    else:
        monkeypatch.setattr(verbs, "modules", lambda: kernel)
    with pytest.raises(LinkError) as error:
        verbs.usable_port()
    assert error.value.cause is Cause.NO_RDMA and why in str(error.value)
    assert why in ports.without_verbs()


def test_the_first_active_port_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "modules", lambda: Kernel(["gone_0", "mlx5_0"]))
    with pytest.raises(LinkError, match=r"gone_0 has no port in .*, mlx5_0 has no port"):
        verbs.usable_port(tmp_path)
    card(tmp_path, port=1).joinpath("state").write_text("1: DOWN\n")
    with pytest.raises(LinkError, match="mlx5_0/1 is 1: DOWN"):
        verbs.usable_port(tmp_path)
    card(tmp_path, port=2)
    used = verbs.usable_port(tmp_path)
    assert used == verbs.Port("mlx5_0", 2, IPV4, 2, "Ethernet", "RoCE v2")
    assert used.fabric == "RoCE v2 IPv4"
    assert ports.without_verbs() == ""


def test_addresses_of_buffers_are_those_of_their_bytes() -> None:
    data = bytearray(b"0123456789")
    view = memoryview(data)
    assert verbs.address_of(view[3:]) == verbs.address_of(view) + 3
    assert verbs.address_of(memoryview(bytes(data))) != 0
