"""Read this node's RDMA ports from the kernel: state, rate, addresses and counters.

`root` is /sys, or a copy of another machine's tree in a test. A counter that cannot be read is
unknown and has no value; it is never zero. Whether verbs work is a question of its own: the
libraries of the machine may not fit. Tests: tests/unit/test_rdma_ports.py.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from libs.common.devices.topology import RdmaPort
from libs.job.transport import verbs
from libs.job.transport.errors import LinkError

SYS: Final = Path("/sys")
PORTS_MAX: Final = 64
COUNTERS_MAX: Final = 128
COUNTERS: Final = ("counters", "hw_counters")


def ports(root: Path = SYS) -> tuple[RdmaPort, ...]:
    """Return the RDMA ports of this machine; none if the kernel shows none."""
    return tuple(port for port, _ in zip(_ports(root), range(PORTS_MAX), strict=False))


def without_verbs() -> str:
    """Return why programs cannot use verbs on this machine; empty if they can."""
    try:
        verbs.devices()
    except LinkError as error:
        return error.detail
    return ""


def _ports(root: Path) -> Iterator[RdmaPort]:
    for device in _entries(root / "class/infiniband"):
        for path in _entries(device / "ports"):
            if path.name.isdigit():
                yield _port(device, path)


def _port(device: Path, path: Path) -> RdmaPort:
    gid, _ = verbs.best_gid(path)
    counters: dict[str, int] = {}
    unknown: list[str] = []
    for folder in COUNTERS:
        for counter in _entries(path / folder)[:COUNTERS_MAX]:
            value = _read(counter)
            if value.isdecimal():
                counters[counter.name] = int(value)
            elif counter.name != "lifespan":  # how often the card counts, not a count
                unknown.append(counter.name)
    return RdmaPort(
        device=device.name,
        port=int(path.name),
        state=_word(path / "state"),
        physical=_word(path / "phys_state"),
        rate=_read(path / "rate"),
        layer=_read(path / "link_layer"),
        gid=gid,
        counters={name: count for name, count in counters.items() if name != "lifespan"},
        unknown=tuple(unknown),
    )


def _word(path: Path) -> str:
    """Return the word of "4: ACTIVE"; empty if it is unknown."""
    return _read(path).rpartition(": ")[2]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name))
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
