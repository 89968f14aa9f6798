"""A queue pair of RDMA: made, connected to the peer's, broken and freed.

Tests: tests/contract/test_transport.py in the guest of `make rdma`.
"""

import secrets
import time
from contextlib import suppress
from ipaddress import IPv6Address
from typing import Any, Final, Protocol

from libs.job.transport import verbs
from libs.job.transport.errors import Cause, WireFault
from libs.job.transport.session import WINDOW
from libs.job.transport.verbs import Foreign

# Requests that are on their way at once: a frame has up to two.
SENDS_MAX: Final = 4 * WINDOW
PSN_BITS: Final = 24
READS_AT_ONCE: Final = 4
# Exponents and counts of the verbs manual: 134 ms for one try, 7 tries; wait for buffers for ever.
TIMEOUT: Final = 15
TRIES: Final = 7
ENDLESS: Final = 7
RECEIVER_WAIT: Final = 12
# The largest number for the size of packets: 4096 bytes.
MTU_MAX: Final = 5
PROVE_LOOK_S: Final = 0.001


class Card(Protocol):
    """The open device, as a queue pair needs it."""

    verbs: Foreign
    context: Foreign
    domain: Foreign
    port: verbs.Port
    mtu: int


class QueuePair:
    """A queue pair with its completion queue."""

    def __init__(self, card: Card, receives: int) -> None:
        self._card = card
        lib = card.verbs
        self.channel, self.descriptor = verbs.channel(lib, card.context)
        self.queue = lib.CQ(card.context, SENDS_MAX + receives, None, self.channel, 0)
        cap = lib.QPCap(
            max_send_wr=SENDS_MAX,
            max_recv_wr=receives,
            max_send_sge=2,
            max_recv_sge=1,
        )
        init = lib.QPInitAttr(
            qp_type=lib.IBV_QPT_RC, scq=self.queue, rcq=self.queue, cap=cap, sq_sig_all=1
        )
        self.pair = lib.QP(card.domain, init)
        attributes = lib.QPAttr(port_num=card.port.number)
        attributes.qp_access_flags = (
            lib.IBV_ACCESS_LOCAL_WRITE | lib.IBV_ACCESS_REMOTE_READ | lib.IBV_ACCESS_REMOTE_WRITE
        )
        self.pair.to_init(attributes)
        self.first = secrets.randbits(PSN_BITS)
        self.connected = False
        self.address = {
            "number": int(self.pair.qp_num),
            "first": self.first,
            "gid": card.port.gid,
            "mtu": card.mtu,
        }

    def connect(self, peer: dict[str, Any]) -> None:
        """Connect to the peer's queue pair. Raises WireFault, PyverbsError."""
        lib, port = self._card.verbs, self._card.port
        number, first, mtu, gid = _address(peer)
        route = lib.GlobalRoute(dgid=lib.GID(gid), sgid_index=port.gid_index)
        there = lib.AHAttr(gr=route, is_global=1, port_num=port.number)
        attributes = lib.QPAttr(port_num=port.number)
        attributes.dest_qp_num = number
        attributes.path_mtu = min(mtu, self._card.mtu)
        attributes.rq_psn = first
        attributes.sq_psn = self.first
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = READS_AT_ONCE
        attributes.min_rnr_timer = RECEIVER_WAIT
        attributes.timeout = TIMEOUT
        attributes.retry_cnt = TRIES
        attributes.rnr_retry = ENDLESS
        attributes.ah_attr = there
        try:
            self.pair.to_rts(attributes)
        except lib.PyverbsError as error:
            detail = f"there is no route to the peer's port {gid} ({error})"
            raise WireFault(Cause.NO_RDMA, detail) from error
        self.connected = True

    def prove(self, place: Foreign, by_s: float) -> None:
        """Check that the peer's pair answers, by a write of no bytes. Raises WireFault.

        A connected pair says nothing of the path: only the peer's acknowledgement does. `place` is
        an SGE of no bytes, because a request without one cannot be made.
        """
        lib = self._card.verbs
        request = lib.SendWR(
            wr_id=0,
            num_sge=1,
            sg=[place],
            opcode=lib.IBV_WR_RDMA_WRITE,
            send_flags=lib.IBV_SEND_SIGNALED,
        )
        request.set_wr_rdma(0, 0)
        self.pair.post_send(request)
        while time.monotonic() < by_s:
            for completion in self.queue.poll(1)[1]:
                if completion.status == lib.IBV_WC_SUCCESS:
                    return
                name = verbs.status_name(lib, completion.status)
                raise WireFault(Cause.NO_RDMA, f"the peer's port cannot be reached: {name}")
            time.sleep(PROVE_LOOK_S)
        raise WireFault(Cause.NO_RDMA, "the peer's port does not answer over verbs")

    def fail(self) -> None:
        """Move the pair to its error state."""
        lib = self._card.verbs
        attributes = lib.QPAttr(qp_state=lib.IBV_QPS_ERR)
        with suppress(lib.PyverbsError):
            self.pair.modify(attributes, lib.IBV_QP_STATE)

    def close(self) -> None:
        """Free pair, queue and channel."""
        self.pair.close()
        self.queue.close()
        self.channel.close()


def _address(peer: dict[str, Any]) -> tuple[int, int, int, str]:
    """Return number, first packet, MTU and GID of a peer's queue pair. Raises WireFault."""
    try:
        number, first, mtu = (int(peer[name]) for name in ("number", "first", "mtu"))
        gid = str(IPv6Address(str(peer["gid"])).exploded)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise WireFault(Cause.CORRUPT, f"a queue pair without address: {error!r}") from None
    most = 1 << PSN_BITS
    if not (0 <= number < most and 0 <= first < most and 1 <= mtu <= MTU_MAX):
        raise WireFault(Cause.CORRUPT, f"a queue pair with the address {number}, {first}, {mtu}")
    return number, first, mtu, gid
