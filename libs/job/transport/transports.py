"""Open links: dial a peer, or listen for peers that dial.

The dialling side is `opening.py`, the listening side `listening.py`. Tests:
tests/contract/test_transport.py, tests/attack/test_transport.py.
"""

import time
from collections.abc import Callable
from typing import Final, Protocol

from libs.job.transport import verbs
from libs.job.transport.access import Access
from libs.job.transport.errors import LinkError, WireFault
from libs.job.transport.link import WITHIN_S, Link
from libs.job.transport.listening import Listener
from libs.job.transport.opening import Opening, dialled
from libs.job.transport.rdma import RdmaCarrier
from libs.job.transport.tcp import TcpCarrier
from libs.job.transport.traffic import Carrier, Options

# A link that may use TCP instead is over RDMA within this time, or over TCP.
RDMA_S: Final = 4.0


class Transport(Protocol):
    """A way to open links. `TcpTransport` runs anywhere; `RdmaTransport` needs verbs."""

    name: str

    def listen(self, host: str, port: int = 0) -> Listener:
        """Listen for peers. Raises LinkError."""

    def connect(self, address: str, within_s: float = WITHIN_S) -> Link:
        """Open a link to the listener at `host:port`. Raises LinkError."""


class TcpTransport:
    """Links over TCP."""

    def __init__(self, access: Access, options: Options | None = None) -> None:
        self.name = TcpCarrier.name
        self._opening = Opening(access, options or Options(), {self.name: TcpCarrier})

    def listen(self, host: str, port: int = 0) -> Listener:
        """Listen for peers. Raises LinkError."""
        return Listener(self._opening, host, port)

    def connect(self, address: str, within_s: float = WITHIN_S) -> Link:
        """Open a link to the listener at `host:port`. Raises LinkError."""
        return dialled(self._opening, address, within_s, self.name)


class RdmaTransport:
    """Links over RDMA. The listener's address is one of TCP, over which the two sides meet."""

    def __init__(self, access: Access, options: Options | None = None) -> None:
        """Find an active port. Raises LinkError NO_RDMA, with the reason."""
        self.name = RdmaCarrier.name
        self.port = verbs.usable_port()
        wanted = options or Options()
        self._opening = Opening(
            access, wanted, {self.name: lambda: RdmaCarrier(self.port, wanted.buffers)}
        )

    def listen(self, host: str, port: int = 0) -> Listener:
        """Listen for peers. Raises LinkError."""
        return Listener(self._opening, host, port)

    def connect(self, address: str, within_s: float = WITHIN_S) -> Link:
        """Open a link to the listener at `host:port`. Raises LinkError."""
        return dialled(self._opening, address, within_s, self.name)


class EitherTransport:
    """Links over RDMA where there is a path over it, else over TCP.

    Its listener takes both at one address. `port_of` returns the port that RDMA uses now, and
    raises LinkError NO_RDMA if there is none.
    """

    name: Final = "either"

    def __init__(
        self,
        access: Access,
        options: Options | None = None,
        port_of: Callable[[], verbs.Port] = verbs.usable_port,
    ) -> None:
        self._port_of = port_of
        self._options = options or Options()
        carriers: dict[str, Callable[[], Carrier]] = {
            RdmaCarrier.name: self._rdma,
            TcpCarrier.name: TcpCarrier,
        }
        self._opening = Opening(access, self._options, carriers)

    def listen(self, host: str, port: int = 0) -> Listener:
        """Listen for peers. Raises LinkError."""
        return Listener(self._opening, host, port)

    def connect(self, address: str, within_s: float = WITHIN_S) -> Link:
        """Open a link to the listener at `host:port`. Raises LinkError.

        `link.no_rdma` says why it is over TCP; empty: it is over RDMA. The proof of the path may
        take longer than RDMA's half of the time. TCP has its half nevertheless.
        """
        by_s = time.monotonic() + within_s
        try:
            return dialled(self._opening, address, min(RDMA_S, within_s / 2), RdmaCarrier.name)
        except LinkError as error:
            why = error.detail
        left_s = max(by_s - time.monotonic(), within_s / 2)
        link = dialled(self._opening, address, left_s, TcpCarrier.name)
        link.no_rdma = why
        return link

    def _rdma(self) -> RdmaCarrier:
        try:
            port = self._port_of()
        except LinkError as error:
            raise WireFault(error.cause, error.detail) from error
        return RdmaCarrier(port, self._options.buffers)


def chosen(access: Access, options: Options | None = None) -> tuple[Transport, str]:
    """Return RDMA if this machine has it, else TCP, and why."""
    try:
        transport = RdmaTransport(access, options)
    except LinkError as error:
        return TcpTransport(access, options), f"TCP: {error.detail}"
    port = transport.port
    return transport, f"RDMA: port {port.device}/{port.number} is active"
