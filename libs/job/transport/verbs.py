"""The few calls of pyverbs that a link makes, and the three ways in which a machine has no RDMA.

pyverbs is imported here alone, when it is needed: Debian's python3-pyverbs, or `muster-gpu[rdma]`.
Tests: tests/unit/test_rdma_ports.py.
"""

import ctypes
import os
import threading
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from libs.job.transport.errors import Cause, LinkError

# An object of pyverbs, which has no types.
Foreign: TypeAlias = Any
SYS: Final = Path("/sys")
RXE_V2: Final = "RoCE v2"
IPV4_MAPPED: Final = "0000:0000:0000:0000:0000:ffff:"
GIDS_MAX: Final = 64
INFINIBAND: Final = "InfiniBand"
# The first half of a GID as the kernel writes it.
SUBNET_DIGITS: Final = 19
_making_channel = threading.Lock()


class Port(NamedTuple):
    """A port over which a link may run. `layer` and `kind` are the kernel's words."""

    device: str
    number: int
    gid: str
    gid_index: int
    layer: str = ""
    kind: str = ""

    @property
    def fabric(self) -> str:
        """The network that the port is in, as far as one node can know.

        Ports with different values cannot reach each other; those with the same perhaps can. Ports
        of InfiniBand are told apart by their subnet, those of Ethernet by the protocol.
        """
        if self.layer == INFINIBAND:
            return f"{self.layer} subnet {self.gid[:SUBNET_DIGITS]}"
        return f"{self.kind or self.layer} {'IPv4' if self.gid.startswith(IPV4_MAPPED) else 'IPv6'}"


def modules() -> Foreign:
    """Return the parts of pyverbs as one namespace. Raises LinkError NO_RDMA."""
    found: dict[str, Any] = {}
    try:
        for part in ("device", "pd", "mr", "cq", "qp", "wr", "addr", "pyverbs_error"):
            found |= vars(import_module(f"pyverbs.{part}"))
        try:
            enums = import_module("pyverbs.libibverbs_enums")
        except ImportError:
            enums = import_module("pyverbs.enums")
    except ImportError as error:
        raise no_rdma(f"pyverbs cannot be used ({error})") from error
    return type("Verbs", (), {**found, **vars(enums)})


def no_rdma(why: str) -> LinkError:
    """Return the error of a machine without RDMA."""
    return LinkError(Cause.NO_RDMA, "this machine", f"no RDMA: {why}")


def devices() -> list[str]:
    """Return the names of the RDMA devices. Raises LinkError NO_RDMA, with the reason."""
    verbs = modules()
    try:
        found = [each.name.decode() for each in verbs.get_device_list()]
    except (verbs.PyverbsRDMAError, OSError) as error:
        raise no_rdma(f"the kernel has no RDMA support ({error})") from error
    if not found:
        raise no_rdma("the kernel has RDMA support, and no device or `rdma link` exists")
    return found


def usable_port(root: Path = SYS) -> Port:
    """Return the first active port of this machine. Raises LinkError NO_RDMA."""
    seen = []
    for device in devices():
        ports = root / "class/infiniband" / device / "ports"
        found = [path for path in ports.glob("*") if path.name.isdecimal()]
        if not found:  # the kernel's module, or this container, shows none
            seen.append(f"{device} has no port in {ports}")
        for port in sorted(found, key=lambda path: int(path.name)):
            state = _read(port / "state")
            if "ACTIVE" in state:
                gid, index = best_gid(port)
                return Port(
                    device=device,
                    number=int(port.name),
                    gid=gid,
                    gid_index=index,
                    layer=_read(port / "link_layer"),
                    kind=_read(port / f"gid_attrs/types/{index}"),
                )
            seen.append(f"{device}/{port.name} is {state or 'unreadable'}")
    raise no_rdma(f"no port is active: {', '.join(seen)}")


def best_gid(port: Path) -> tuple[str, int]:
    """Return the address of a port and its index: RoCE v2 over IPv4 before all others."""
    best = ("", 0, -1)
    for index in range(GIDS_MAX):
        gid = _read(port / f"gids/{index}")
        if not gid:
            break
        kind = _read(port / f"gid_attrs/types/{index}")
        rank = 2 * (kind == RXE_V2) + gid.startswith(IPV4_MAPPED)
        if gid.replace(":", "").strip("0") and rank > best[2]:
            best = (gid, index, rank)
    return best[0], best[1]


def status_name(verbs: Foreign, status: int) -> str:
    """Return the verbs' own name of a completion's status."""
    names = (name for name in vars(verbs) if name.startswith("IBV_WC_") and "_ERR" in name)
    return next((name for name in names if getattr(verbs, name) == status), f"status {status}")


def channel(verbs: Foreign, context: Foreign) -> tuple[Foreign, int]:
    """Return a completion channel and its descriptor, which pyverbs does not show."""
    with _making_channel:
        before = _event_descriptors()
        found = verbs.CompChannel(context)
        new = _event_descriptors() - before
    if len(new) != 1:
        raise no_rdma(f"a completion channel opened {len(new)} descriptors instead of one")
    return found, new.pop()


def _event_descriptors() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if "infinibandevent" in os.readlink(f"/proc/self/fd/{name}"):
                found.add(int(name))
        except OSError:
            continue
    return found


class _Buffer(ctypes.Structure):
    """Py_buffer of the C API."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def address_of(view: memoryview) -> int:
    """Return the address of a buffer. The caller keeps the view alive."""
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    address = int(buffer.buf or 0)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
